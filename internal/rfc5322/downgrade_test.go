package rfc5322

import (
	"bytes"
	"io"
	"mime/quotedprintable"
	"strings"
	"testing"
)

func downgrade(text []byte, step int) []byte {
	d := &Downgrader{Structure: Structure{MaxDepth: 10, MaxBoundary: 100}}
	var out []byte
	for len(text) > 0 {
		n := min(step, len(text))
		out = d.Append(out, text[:n])
		text = text[n:]
	}
	return d.AppendEnd(out)
}

func TestDowngrader(t *testing.T) {
	t.Parallel()
	const eight, coded, seven = "Content-Transfer-Encoding: 8bit\n", "Content-Transfer-Encoding: quoted-printable\n", "Content-Transfer-Encoding: 7bit\n"
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"undeclared", "Subject: x\n\n\xe9=\n", "Subject: x\n\n\xe9=\n"},
		{"declared", eight + "Subject: x\n\n\xe9= \x7f\t\nplain\n.\n", "Subject: x\n" + coded + "\n=E9=3D =7F=09\nplain\n.\n"},
		{"binary, folded", "content-transfer-encoding:\n BINARY\n\n\xe9\n", coded + "\n=E9\n"},
		{"base64", "Content-Transfer-Encoding: base64\n\n/+==\n", "Content-Transfer-Encoding: base64\n\n/+==\n"},
		{"said twice", eight + "Content-Transfer-Encoding: base64\n\n/+==\n", "Content-Transfer-Encoding: base64\n\n/+==\n"},
		{"header only", eight + "Subject: x\n", "Subject: x\n" + coded},
		{"no empty line", eight + "\xe9 is no field\n", coded + "=E9 is no field\n"},
		{"field with 8-bit", "Subject: \xe9\n\xe9\n", "Subject: \xe9\n\xe9\n"},
		{"no last line end", eight + "\n\xe9", coded + "\n=E9\n"},
		{"long", eight + "\n" + strings.Repeat("x", 100) + "\n", coded + "\n" + strings.Repeat("x", 73) + "=\n" + strings.Repeat("x", 27) + "\n"},
		{"parts", eight + "Content-Type: multipart/mixed; boundary=b\n\npre\xe9\n--b\n" + eight + "\n\xe9\n--b\n\n\xe9\n--b--\n\xe9\n",
			"Content-Type: multipart/mixed; boundary=b\n" + seven + "\npre\xe9\n--b\n" + coded + "\n=E9\n--b\n\n\xe9\n--b--\n\xe9\n"},
		{"attached", eight + "Content-Type: message/rfc822\n\n" + eight + "Subject: y\n\n\xe9\n", "Content-Type: message/rfc822\n" + seven + "\nSubject: y\n" + coded + "\n=E9\n"},
		{"attached, beyond ASCII", eight + "Content-Type: message/global\n\nSubject: \xc3\xa9\n\n\xe9\n", "Content-Type: message/global\n" + coded + "\nSubject: =C3=A9\n\n=E9\n"},
		{"report", eight + "Content-Type: message/delivery-status\n\n\xe9\n", "Content-Type: message/delivery-status\n" + seven + "\n\xe9\n"},
	} {
		in := []byte(strings.ReplaceAll(c.in, "\n", "\r\n"))
		want := strings.ReplaceAll(c.want, "\n", "\r\n")
		for _, step := range []int{1, 7, len(in) + 1} {
			if got := string(downgrade(in, step)); got != want {
				t.Errorf("%s, pieces of %d: got\n%q\nwant\n%q", c.name, step, got, want)
			}
		}
	}
}

// A line that is too long to be held is encoded in parts.
func TestDowngraderLongLine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\xe9 x", maxHeld)
	out := downgrade([]byte("Content-Transfer-Encoding: 8bit\r\n\r\n"+long+"\r\n"), 1000)
	_, body, _ := bytes.Cut(out, []byte("\r\n\r\n"))
	got, err := io.ReadAll(quotedprintable.NewReader(bytes.NewReader(body)))
	if err != nil || string(got) != long+"\r\n" {
		t.Errorf("%d octets of %d, %v", len(got), len(long)+2, err)
	}
	for line := range bytes.Lines(body) {
		if len(line) > 78 {
			t.Fatalf("a line of %d", len(line))
		}
	}
}

// FuzzDowngrader: pieces do not matter, what has been encoded is not encoded
// again, and a body of one part is what it was when it is decoded.
func FuzzDowngrader(f *testing.F) {
	f.Add([]byte("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\xe9=\r\n--b--\r\n"), 3)
	f.Add([]byte("Subject: x\r\n y\r\nno header\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		if step < 1 || len(b) >= maxHeld/4 {
			return
		}
		whole := downgrade(b, len(b)+1)
		if pieces := downgrade(b, step); !bytes.Equal(whole, pieces) {
			t.Errorf("at once:\n%q\nin pieces:\n%q", whole, pieces)
		}
		if again := downgrade(whole, step); !bytes.Equal(whole, again) {
			t.Errorf("once:\n%q\ntwice:\n%q", whole, again)
		}
		body := bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), []byte("\r\n"))
		out := downgrade(append([]byte("Content-Transfer-Encoding: binary\r\n\r\n"), body...), step)
		_, coded, _ := bytes.Cut(out, []byte("\r\n\r\n"))
		got, err := io.ReadAll(quotedprintable.NewReader(bytes.NewReader(coded)))
		if !bytes.HasSuffix(body, []byte("\n")) && len(body) > 0 {
			body = append(body, "\r\n"...)
		}
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%v: got\n%q\nwant\n%q", err, got, body)
		}
	})
}
