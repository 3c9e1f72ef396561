package cleanup

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// gaugedByLine is what a gauge is to find in content, found in the plainest way.
func gaugedByLine(content []byte) mail.Body {
	flags := mail.BodyGauged
	header := true
	for line := range bytes.SplitSeq(content, crlf) {
		if header = header && len(line) > 0; header && eight(line) {
			flags |= mail.BodyUTF8Hdr
		}
		if bytes.HasPrefix(line, []byte(".")) {
			flags |= mail.BodyDots
		}
		if len(line) > longLine {
			flags |= mail.BodyLong
		}
		if eight(line) {
			flags |= mail.Body8Bit
		}
	}
	return flags
}

// Header fields count as lines of the content, wherever they come from.
func TestHeaderIsGauged(t *testing.T) {
	t.Parallel()
	table := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name + "_checks = regexp:" + path + "\n"
	}
	long := strings.Repeat("x", longLine+2)
	for _, tc := range []struct {
		name, conf, content string
		prepend             []string
		want                mail.Body
	}{
		{"none", "", "Subject: x\r\n\r\ny\r\n", nil, 0},
		{"dot field", "", ".X: y\r\n\r\ny\r\n", nil, mail.BodyDots},
		{"dots field", "", "Subject: x\r\n..Authentication-Results: x; dkim=pass\r\n\r\ny\r\n", nil, mail.BodyDots},
		{"dot in a continuation", "", "Subject: x\r\n .y\r\n\r\ny\r\n", nil, 0},
		{"long field", "", "Subject: " + long + "\r\n\r\ny\r\n", nil, mail.BodyLong},
		{"longest line", "", "S: " + long[:longLine-3] + "\r\n\r\ny\r\n", nil, 0},
		{"header only", "", ".S: " + long + "\r\n", nil, mail.BodyDots | mail.BodyLong},
		{"access table", "", "S: x\r\n\r\ny\r\n", []string{".X: y"}, mail.BodyDots},
		{"replaced", table("header", "/^S:/ REPLACE .X: \u00e9\n"), "S: x\r\n\r\ny\r\n", nil, mail.BodyDots | mail.Body8Bit | mail.BodyUTF8Hdr},
		{"prepended", table("header", "/^S:/ PREPEND .X: y\n"), "S: x\r\n\r\ny\r\n", nil, mail.BodyDots},
		{"line replaced", table("body", "/^y/ REPLACE .\u00e9\n"), "S: x\r\n\r\ny\r\n", nil, mail.BodyDots | mail.Body8Bit},
		{"8 bits taken away", table("body", "/^y/ REPLACE z\n"), "S: x\r\n\r\ny\u00e9\r\n", nil, 0},
		{"no header", "", ". x\r\n", nil, mail.BodyDots},
	} {
		sub := submission("remote", "r@x.test")
		sub.Prepend = tc.prepend
		text, r := feed(newCore(t, tc.conf, nil), sub, tc.content, 0)
		if got := gaugedByLine([]byte(text)); r.Envelope.Body != tc.want|mail.BodyGauged || got != r.Envelope.Body {
			t.Errorf("%s: flags %b, want %b; stored %.80q, which has %b", tc.name, r.Envelope.Body, tc.want|mail.BodyGauged, text, got)
		}
	}
}

// FuzzStored has any content stored: in pieces, checked by tables, edited by
// filters. What the envelope says of it is so, and it has no line ends but CRLF.
func FuzzStored(f *testing.F) {
	table := filepath.Join(f.TempDir(), "checks")
	if err := os.WriteFile(table, []byte("/^drop/ IGNORE\n/^first: *(.*)/ PREPEND .X-First: $1\n/^swap: *(.*)/ REPLACE ..Swapped: $1\n"+
		"/^line (.*)/ REPLACE .$1\n/^more (.*)/ PREPEND .$1\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	var servers []*server
	for _, conf := range []string{"", "cleanup_replace_stray_cr_lf = no\n", "message_strip_characters = \\0\nremote_header_rewrite_domain = here.test\n",
		"header_checks = regexp:" + table + "\nbody_checks = regexp:" + table + "\n", "force_mime_input_conversion = yes\nalways_add_missing_headers = yes\n",
		"header_size_limit = 100\nline_length_limit = 512\nmessage_reject_characters = \\0\n"} {
		s, _ := newTestServer(f, conf, "")
		servers = append(servers, s)
	}
	long := strings.Repeat("x", longLine)
	f.Add("Subject: x\r\n\r\ny\r\n", uint8(0), uint8(0), "")
	f.Add("..Authentication-Results: x; dkim=pass\r\n\r\n.\r\n", uint8(3), uint8(3), "")
	f.Add("Subject: "+long+"\r\n .y\r\n\r\n\r\n.", uint8(7), uint8(1), ".New: \u00e9")
	f.Add("swap: \u00e9\r\nfirst: x\r\n\r\nline \r\nmore x\r\n"+long+"y\r\n", uint8(0), uint8(7), "New: x\n\t.y")
	f.Add("no header\r\n.\n\r.\r\n", uint8(1), uint8(2), "")
	f.Add("Content-Type: text/plain\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\u00e9.\r\n.", uint8(2), uint8(8), "")
	f.Fuzz(func(t *testing.T, content string, step, how uint8, edit string) {
		s := servers[int(how>>1)%len(servers)]
		q := &proto.Submit{Flags: proto.SubmitFilter | proto.SubmitNoReceive, Content: []byte(content)}
		if how&1 != 0 {
			q.Flags |= proto.SubmitBounce
		}
		q.Envelope = mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1), Sender: "s@from.test", RewriteContext: "remote",
			Recipients: []mail.Recipient{{Address: "r@here.test"}}}
		in := begun(s, q)
		defer in.abort()
		for rest := q.Content; len(rest) > 0; {
			n := len(rest)
			if step > 0 {
				n = min(n, int(step))
			}
			in.write(bytes.Clone(rest[:n]))
			rest = rest[n:]
		}
		var res Result
		in.out, res = in.msg.Finish(context.Background(), in.out[:0])
		in.store()
		if in.fault != nil {
			t.Fatal(in.fault)
		}
		if res.Refused == nil && edit != "" {
			c, err := in.content()
			if err != nil {
				t.Skip(err)
			}
			if fd, ok := rfc5322.ParseField(toLines(edit)); ok {
				c.Fields = append([]milter.Field{{Name: string(fd.Name()), Raw: fd.Raw}}, c.Fields...)
				in.replace(c)
				in.msg.setVerdict(&res)
			}
		}
		got := in.buf
		if in.file != nil {
			var err error
			if got, err = io.ReadAll(io.NewSectionReader(in.file, 0, in.file.Size())); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) > 0 && (hasStray(got) || !bytes.HasSuffix(got, crlf) && res.Refused == nil) {
			t.Errorf("stored with other line ends than CRLF: %q", got)
		}
		const mine = mail.BodyGauged | mail.BodyDots | mail.BodyLong | mail.BodyUTF8Hdr
		want := gaugedByLine(got)
		if has := res.Envelope.Body; has&mine != want&mine || want&^has != 0 || res.Envelope.Size != int64(len(got)) {
			t.Errorf("the envelope says %b and %d octets, there are %b and %d: %q", has, res.Envelope.Size, want, len(got), got)
		}
	})
}
