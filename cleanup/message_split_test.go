package cleanup

import (
	"reflect"
	"strings"
	"testing"
)

// splitConfigs are configurations that take different ways through the code.
var splitConfigs = []string{
	"",
	"cleanup_replace_stray_cr_lf = no\nheader_size_limit = 60\nhopcount_limit = 3\n",
	"header_size_limit = 60\nmessage_strip_characters = \\0\\001\n" +
		"body_checks = pcre:{{/drop/ IGNORE}, {/repl/ REPLACE new text}, {/before/ PREPEND x}, {/^bad/ REJECT no}}\n" +
		"header_checks = pcre:{{/^X-Drop/ IGNORE}, {/^X-R/ REPLACE X-New: 1}, {/^X-P/ PREPEND X-Q: 2}, {/^X-W/ WARN seen}}\n",
	"cleanup_replace_stray_cr_lf = no\nbody_checks = pcre:{{/zzz/ IGNORE}}\nstrict_8bitmime_body = yes\nnon_empty_end_of_header_action = reject\n",
}

// FuzzSplit checks that it does not matter in which pieces content arrives,
// and that what comes out is lines that end in CRLF and no other CR or LF.
func FuzzSplit(f *testing.F) {
	f.Add(crlfText(remoteMail), uint8(0), uint16(1), uint16(3))
	f.Add("A: b\r\n c\r\n\r\n\r.\n.\r\n", uint8(1), uint16(2), uint16(5))
	f.Add("X-Drop: 1\r\n\r\ndrop\r\nrepl\r\nbefore this\r\n"+strings.Repeat("long line ", 9), uint8(2), uint16(4), uint16(1))
	f.Add("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n\r\nX-R: 1\r\n 2\r\n\r\nx\r\n--b--\r\n", uint8(2), uint16(7), uint16(2))
	f.Add("Received: a\r\nReceived: b\r\nReceived: c\r\nd\r\n\x80\r\n", uint8(3), uint16(1), uint16(1))
	f.Add("Subject: "+strings.Repeat("x", 80)+"\r\n y\r\n\r\nz", uint8(1), uint16(1), uint16(60))
	var cores []*Core
	for _, conf := range splitConfigs {
		c := newCore(f, conf, nil)
		c.lineLimit = 15 // less than the parameter allows
		cores = append(cores, c)
	}
	f.Fuzz(func(t *testing.T, content string, config uint8, a, b uint16) {
		c := cores[int(config)%len(cores)]
		for _, context := range []string{"local", "remote"} {
			s := submission(context, "r@x.y")
			want, wr := feed(c, s, content, 0)
			checkContent(t, want, wr)
			for _, step := range []int{1, 1 + int(a)%50, 1 + int(b)%500} {
				got, gr := feed(c, s, content, step)
				if wr.Refused == nil && got != want {
					t.Fatalf("%s, pieces of %d:\n%q\nwhole:\n%q", context, step, got, want)
				}
				if !reflect.DeepEqual(gr, wr) {
					t.Fatalf("%s, pieces of %d:\n%+v\nwhole:\n%+v", context, step, gr, wr)
				}
			}
		}
	})
}

func checkContent(t *testing.T, out string, r Result) {
	t.Helper()
	if r.Refused != nil {
		return
	}
	if hasStray([]byte(out)) || out != "" && !strings.HasSuffix(out, "\r\n") {
		t.Fatalf("not lines that end in CRLF: %q", out)
	}
	if want := int64(len(out)); r.Envelope.Size != want {
		t.Fatalf("size %d, want %d: %q", r.Envelope.Size, want, out)
	}
}
