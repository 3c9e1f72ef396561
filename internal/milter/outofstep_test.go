package milter

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"posthaste/internal/lockstep/hostile"
	"posthaste/internal/mailfilter"
)

// A filter that refuses each HELO with its name.
func TestHostileFilter(t *testing.T) {
	t.Parallel()
	code := func(key string) []byte { return reply(repCode, "550 5.7.1 "+key+"\x00") }
	p := hostile.Protocol{
		Question: func(r *bufio.Reader, c net.Conn) (string, error) {
			for {
				var head [5]byte
				if _, err := io.ReadFull(r, head[:]); err != nil {
					return "", err
				}
				data := make([]byte, binary.BigEndian.Uint32(head[:])-1)
				if _, err := io.ReadFull(r, data); err != nil {
					return "", err
				}
				switch head[4] {
				case cmdOptions:
					if _, err := c.Write(negotiate(6, 0, stepNoConnect)); err != nil {
						return "", err
					}
				case cmdHelo:
					return strings.TrimSuffix(string(data), "\x00"), nil
				}
			}
		},
		Answer:  code,
		Endless: "\x00\x01\x00\x00yx",
		Huge:    "\xff\xff\xff\xffy550",
		Lenient: true, // the session has come to its end with the first, and its connection is not kept
	}
	hostile.Run(t, p, func(t *testing.T, path string) hostile.Client {
		spec := testSpec("unix:" + path)
		spec.Reuse, spec.Command, spec.Content = true, 2*time.Second, 2*time.Second
		pool := new(Pool)
		t.Cleanup(pool.Close)
		return func(key string) (string, error) {
			var trouble error
			s := Open([]mailfilter.Spec{spec}, pool, func(format string, args ...any) { trouble = errors.Join(trouble, fmt.Errorf(format, args...)) })
			defer s.Close()
			s.Connect(t.Context(), "client", netip.Addr{}, 0)
			v := s.Helo(key)
			return strings.TrimPrefix(v.Reply.Text, "5.7.1 "), trouble
		}
	})
}

// What a filter says unasked in the midst of a session is not taken for the answer to the
// next question.
func TestUnaskedInSession(t *testing.T) {
	t.Parallel()
	spec, _ := listen(t, func(kind byte, _ []byte) []byte {
		switch kind {
		case cmdOptions:
			return negotiate(6, 0, stepNoConnect)
		case cmdHelo:
			return append(reply(repContinue, ""), reply(repContinue, "")...)
		}
		return reply(repReject, "")
	})
	var said string
	s := Open([]mailfilter.Spec{spec}, nil, func(format string, args ...any) { said = fmt.Sprintf(format, args...) })
	defer s.Close()
	s.Connect(t.Context(), "client", netip.Addr{}, 0)
	s.Helo("x")
	if v := s.Mail("<a@b>"); v.Action != mailfilter.Reject || !strings.Contains(said, "out of step") {
		t.Errorf("%+v, %s", v, said)
	}
}
