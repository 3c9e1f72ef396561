package smtp

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"posthaste/cleanup"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// sameAddress is an address service that changes nothing.
type sameAddress struct{}

func (sameAddress) Rewrite(_ context.Context, _, addr string) (string, error) { return addr, nil }

// heard is a connection that keeps what is written to it.
type heard struct {
	net.Conn
	b []byte
}

func (h *heard) Write(p []byte) (int, error)      { h.b = append(h.b, p...); return len(p), nil }
func (h *heard) SetWriteDeadline(time.Time) error { return nil }
func (h *heard) SetDeadline(time.Time) error      { return nil }

// received is what the server has of a message, RFC 5321 section 4.5.2, and
// what it takes for the next command.
func received(wire []byte) (content, rest []byte, ended bool) {
	for {
		i := bytes.Index(wire, crlf)
		if i < 0 {
			return content, wire, false
		}
		line := wire[:i]
		wire = wire[i+2:]
		if len(line) > 0 && line[0] == '.' {
			if line = line[1:]; len(line) == 0 {
				return content, wire, true
			}
		}
		content = append(append(content, line...), crlf...)
	}
}

// broken is content with its lines broken at limit, by the plainest means.
func broken(content []byte, limit int) []byte {
	if limit == 0 {
		return content
	}
	var out []byte
	for line := range bytes.Lines(content) {
		text := bytes.TrimSuffix(line, crlf)
		for room := limit; len(text) > room; room = max(limit, 2) - 1 {
			out = append(append(out, text[:room]...), fold...)
			text = text[room:]
		}
		out = append(append(out, text...), crlf...)
	}
	return out
}

// FuzzWire has any content cleaned up, stored and sent: what the server has
// then is what was stored, octet for octet, but for lines over
// smtp_line_length_limit.
func FuzzWire(f *testing.F) {
	base := "myhostname = me.test\ninet_interfaces = 127.0.0.1\n"
	cfg, err := config.LoadString(base + "header_checks = static:{PREPEND ..Seen: yes}\n")
	if err != nil {
		f.Fatal(err)
	}
	core, err := cleanup.NewCore(cfg, sameAddress{}, table.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { core.Close() })
	var agents []*Agent
	for _, conf := range []string{"", "smtp_line_length_limit = 0\n", "smtp_line_length_limit = 12\n", "smtp_line_length_limit = 2000\n"} {
		agents = append(agents, tcpAgent(f, conf))
	}
	long := strings.Repeat("x", 998)
	f.Add("Subject: x\r\n\r\ny\r\n", uint8(0))
	f.Add("..Authentication-Results: x; dkim=pass\r\n\r\n.\r\n", uint8(0))
	f.Add("..Authentication-Results: x; dkim=pass\r\n\r\n.\r\n", uint8(4))
	f.Add("Subject: "+long+"\r\n .y\r\n\r\n.\r\n", uint8(8))
	f.Add("Subject: "+long+long+long+".\r\n\r\n"+long+".\r\n.", uint8(16))
	f.Add(".\r\nX: y\r\n\r\n"+long+long+"\r\n.\r\n", uint8(3))
	f.Fuzz(func(t *testing.T, content string, how uint8) {
		a := agents[int(how>>2)%len(agents)]
		sub := &proto.Submit{Envelope: mail.Envelope{ID: "4XyZ0000000000z1", Recipients: []mail.Recipient{{Address: "r@to.test"}}}}
		if how&1 != 0 {
			sub.Flags |= proto.SubmitFilter
		}
		m := core.NewMessage(t.Context(), sub)
		pieces, res := m.Finish(t.Context(), m.Write(t.Context(), []byte(content), nil))
		if res.Refused != nil {
			t.Skip(res.Refused)
		}
		stored := bytes.Join(pieces, nil)
		former := res.Envelope
		former.Body &= mail.BodySMTPUTF8 // as it may stand in a queue from before there was a gauge
		for _, env := range []mail.Envelope{res.Envelope, former} {
			body := text{stored, how&2 != 0}
			server := new(heard)
			s := &session{wire: &wire{conn: server}, offers: offers8BitMIME}
			d := &delivery{a: a, set: a.set, tab: a.tab, log: a.log, order: order{env: &env}, body: body}
			tr := &transaction{d: d, s: s}
			if err := tr.send(t.Context(), body, ".\r\n", nil); err != nil {
				t.Fatal(err)
			}
			got, rest, ended := received(server.b)
			if want := broken(stored, a.set.lineLimit); !bytes.Equal(got, want) || len(rest) > 0 || !ended {
				t.Errorf("flags %b: the server has\n%.2000q\nthen %.100q; stored was\n%.2000q\nwant\n%.2000q", env.Body, got, rest, stored, want)
			}
		}
	})
}

// text is content in memory, or, as large content is, in a file.
type text struct {
	b      []byte
	inFile bool
}

func (c text) Len() int64        { return int64(len(c.b)) }
func (c text) Reader() io.Reader { return iotest.OneByteReader(bytes.NewReader(c.b)) }
func (c text) Close() error      { return nil }

func (c text) Bytes() []byte {
	if c.inFile {
		return nil
	}
	return c.b
}
