package rfc5322

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/emersion/go-message"
	"github.com/emersion/go-message/textproto"
)

// This file has other people's parsers read the same text. What they cannot read is not compared: we
// must make something of it. What they can read must be the same here, but for the known
// differences, which each function below has in its comment.

// FuzzAddressesLikeOthers: a list of addresses that net/mail can read has the same addresses here, and
// still has them when it has been written anew.
//
// Known differences:
//   - net/mail decodes encoded words in display names, and has no group names; neither is compared.
//   - A domain literal is taken as it stands here; net/mail refuses most, and resolves escapes in none.
//   - net/mail lets "a@b" <c@d> stand for c@d, and so do we; what is left of it, the name, is not compared.
//   - Octets that are not UTF-8 are refused there.
func FuzzAddressesLikeOthers(f *testing.F) {
	for _, s := range []string{"a@b, c@d", "G: a@b, \"c, d\" <e@f>;", `"x y" <y@z> (c)`, "=?utf-8?q?J=C3=B6?= <j@x>", `"a b"."c"@d.e`, "a@b (x (y)), (z) c@d", "a . b @ c . d", "<@x,@y:a@b>",
		"a@[192.0.2.1]", "\"\\\"\"@x", "a@b,,c@d", "Group:;, x@y", "A B. C <d@e>", "a@b\r\n\t, c@d", "\"a\\\\\"@b", "j\u00f6@x", "a..b@c", ".a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, ok := theirAddresses(text)
		if !ok || slices.ContainsFunc(want, func(a string) bool { return strings.Contains(a, "@[") }) {
			return
		}
		list := AppendAddresses(nil, text, 0)
		if got := ourAddresses(list); !slices.Equal(got, want) {
			t.Fatalf("%q: %q, and net/mail has %q", text, got, want)
		}
		for i := range list {
			list[i].Changed = true
		}
		field, ok := ParseField(AppendRewritten(nil, "To", text, list))
		if !ok {
			t.Fatalf("%q: no field when written anew", text)
		}
		if got, ok := theirAddresses(unfolded(string(field.Body()))); !ok || !slices.Equal(got, want) {
			t.Fatalf("%q: written anew it is %q, in which net/mail has %q (%v)", text, field.Raw, got, ok)
		}
	})
}

// theirAddresses are those that net/mail finds.
func theirAddresses(text string) (addrs []string, ok bool) {
	list, err := mail.ParseAddressList(text)
	if err != nil {
		return nil, false
	}
	for _, a := range list {
		addrs = append(addrs, a.Address)
	}
	return addrs, true
}

func ourAddresses(list []Address) (addrs []string) {
	for _, a := range list {
		addrs = append(addrs, a.Addr)
	}
	return addrs
}

func unfolded(s string) string { return strings.ReplaceAll(s, "\r\n", "") }

// FuzzHeaderLikeOthers: a header that go-message can read has the same fields here, in the same order.
//
// Known differences:
//   - White space between the name and the colon belongs to neither here, and ends the name there.
//   - A header that begins with white space, or has a line without a colon, is an error there. Here it ends at
//     that line.
//   - A line without a name before its colon is passed over there, and ends the header here.
//   - Names are compared without regard to letter case, and values without the white space at folds:
//     go-message joins lines with one space.
func FuzzHeaderLikeOthers(f *testing.F) {
	for _, s := range []string{"A: b\r\n c\r\nD:\r\n\r\nbody", "a:b\r\nA:  c \r\n\r\n", "X: 1\r\n\t2\r\n \r\n3: y\r\n\r\n", "A: b\nC: d\n\n", "A : b\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if bytes.HasPrefix(msg, []byte(":")) || bytes.Contains(msg, []byte("\n:")) {
			return
		}
		h, err := textproto.ReadHeader(bufio.NewReader(bytes.NewReader(msg)))
		if err != nil {
			return
		}
		var want, got []string
		for fields := h.Fields(); fields.Next(); {
			want = append(want, strings.ToLower(fields.Key())+"\n"+words(fields.Value()))
		}
		for rest := msg; ; {
			field, r, ok := NextField(rest)
			if !ok {
				break
			}
			if field.name != field.colon {
				return
			}
			got, rest = append(got, strings.ToLower(string(field.Name()))+"\n"+words(string(field.Body()))), r
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q:\n%q\nand go-message has\n%q", msg, got, want)
		}
	})
}

// words is a text with a space for each white space.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// FuzzStructureLikeOthers: in a multipart message that go-message can read to its end, each of its parts is a
// part here. The converse does not hold: Structure looks at what any reader might see.
//
// Known differences:
//   - More than one boundary parameter is an error there; here all of them count.
//   - A boundary that another one begins with: here the line is the outer one's too.
//   - A line of a boundary may have other text behind the boundary here, as with Postfix.
//   - What is in an attached message is a header here, and content there.
//   - Parts without an end, at the end of the message, are an error there.
func FuzzStructureLikeOthers(f *testing.F) {
	for _, s := range []string{
		"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n1\r\n--b\r\nX: y\r\n\r\n2\r\n--b--\r\n",
		"Content-Type: multipart/mixed; boundary=\"a b\"\r\n\r\n--a b\r\nContent-Type: multipart/digest; boundary=c\r\n\r\n--c\r\n\r\nS: x\r\n\r\n--c--\r\n--a b--\r\n",
		"Content-Type: Multipart/Alternative ; charset=x; BOUNDARY = x (c)\r\n\r\npre\r\n--x\t\r\n\r\n--xy\r\n--x--\r\nepi",
		"Content-Type: multipart/mixed;\r\n boundary=\"\\\"q\"\r\n\r\n--\"q\r\n\r\n--\"q--\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > 4<<10 || !utf8.Valid(msg) || bytes.ContainsRune(msg, 0) {
			return
		}
		want, ok := theirParts(msg)
		if !ok || want == 0 {
			return
		}
		if got := ourParts(msg); got < want {
			t.Fatalf("%q: %d parts, and go-message has %d", msg, got, want)
		}
	})
}

// theirParts counts the parts that go-message finds; ok is false if it has an objection.
func theirParts(msg []byte) (n int, ok bool) {
	e, err := message.Read(bytes.NewReader(msg))
	if err != nil {
		return 0, false
	}
	n, err = partsOf(e, 0)
	return n, err == nil
}

func partsOf(e *message.Entity, depth int) (n int, err error) {
	r := e.MultipartReader()
	if r == nil || depth > 10 {
		return 0, nil
	}
	for {
		p, err := r.NextPart()
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, fmt.Errorf("part %d: %w", n, err)
		}
		inner, err := partsOf(p, depth+1)
		if n += 1 + inner; err != nil {
			return n, err
		}
		if _, err := io.Copy(io.Discard, p.Body); err != nil {
			return n, err
		}
	}
}

// ourParts counts the parts that Structure finds.
func ourParts(msg []byte) (n int) {
	s := Structure{MaxDepth: 100}
	header := true
	for len(msg) > 0 {
		if header {
			if f, rest, ok := NextField(msg); ok {
				s.Field(f)
				msg = rest
				continue
			}
			header = s.EndOfHeader()
			if line, rest, _ := bytes.Cut(msg, []byte("\n")); len(bytes.TrimRight(line, "\r")) == 0 {
				msg = rest
				continue
			}
		}
		line, rest, _ := bytes.Cut(msg, []byte("\n"))
		if found, part := s.Boundary(bytes.TrimRight(line, "\r")); found {
			if header = part; part {
				n++
			}
		}
		msg = rest
	}
	return n
}
