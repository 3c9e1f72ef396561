package cleanup

import (
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// A field of a part, or of an attached message, that is not ASCII makes SMTPUTF8 necessary, as
// with Postfix: internal/differential has the same of both.
func TestUTF8InParts(t *testing.T) {
	t.Parallel()
	const mixed = "Content-Type: multipart/mixed; boundary=b\n\n"
	for _, tc := range []struct {
		name, content string
		want          bool
	}{
		{"part", mixed + "pre: é\n--b\nContent-Type: text/plain\nContent-Description: é\n\nbody\n--b--\n", true},
		{"continuation", mixed + "--b\nContent-Type: text/plain;\n\tname=é\n\nbody\n--b--\n", true},
		{"last line", mixed + "--b\nX: é", true},
		{"attached message", "Content-Type: message/rfc822\n\nSubject: é\n\nbody\n", true},
		{"digest", "Content-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: é\n\nbody\n--b--\n", true},
		{"deep", "Content-Type: multipart/mixed;\n boundary=b\n\n--b\nContent-Type: multipart/mixed; boundary=c\n\n--c\n\nx\n--c--\n--b\nX: é\n\n--b--\n", true},
		{"a field longer than a line may be", mixed + "--b\nX: " + strings.Repeat("x", 2*maxPartLine) + "é\n\n", true},
		{"bodies", mixed + "X: é\n--b\nX: y\n\nX: é\n--c\nX: é\n--b\nno field: é\n\n--b--\nX: é\n", false},
		{"no multipart", "Content-Type: text/plain; boundary=b\n\n--b\nX: é\n", false},
		{"delivery status", "Content-Type: message/delivery-status\n\nX: é\n", false},
		{"header ends early", mixed + "--b\nContent-Type: text/plain\né\nX: é\n\nbody\n--b--\n", false},
		{"boundary in a line that is too long", mixed + strings.Repeat("x", maxPartLine) + "\n--b" + strings.Repeat("x", 3*maxPartLine) + "\nX: y\n\nX: é\n", false},
	} {
		content := strings.ReplaceAll(tc.content, "\n", "\r\n")
		for _, piece := range []int{0, 1, 7} {
			check := func(conf string, flags proto.SubmitFlags, says, want mail.Body) {
				t.Helper()
				s := submission("remote", "r@x.test")
				s.Flags |= flags
				s.Envelope.Body |= says
				_, r := feed(newCore(t, "smtputf8_enable = yes\n"+conf, nil), s, content, piece)
				if got := r.Envelope.Body & (mail.BodySMTPUTF8 | mail.BodyUTF8Hdr); got != want {
					t.Errorf("%s, %s in pieces of %d: flags %b, want %b", tc.name, conf, piece, got, want)
				}
			}
			detected, declared := mail.Body(0), mail.BodySMTPUTF8
			if tc.want {
				detected, declared = mail.BodySMTPUTF8|mail.BodyUTF8Hdr, mail.BodySMTPUTF8|mail.BodyUTF8Hdr
			}
			check("", proto.SubmitAutoUTF8, 0, detected)
			check("", 0, mail.BodySMTPUTF8, declared)
			check("", 0, 0, 0)
			check("disable_mime_input_processing = yes\n", proto.SubmitAutoUTF8, 0, 0)
			check("smtputf8_enable = no\n", proto.SubmitAutoUTF8, 0, 0)
		}
	}
}
