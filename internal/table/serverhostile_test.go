package table

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"posthaste/internal/lockstep/hostile"
)

func openHostile(spec string) func(t *testing.T, path string) hostile.Client {
	return func(t *testing.T, path string) hostile.Client {
		tab := open(t, spec, Options{Timeout: 2 * time.Second, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}})
		return func(key string) (string, error) {
			value, found, err := tab.Lookup(t.Context(), key)
			if err == nil && !found {
				err = errors.New("not found")
			}
			return value, err
		}
	}
}

func TestHostileTCPServer(t *testing.T) {
	t.Parallel()
	hostile.Run(t, hostile.Protocol{
		Question: func(r *bufio.Reader, _ net.Conn) (string, error) {
			line, err := r.ReadString('\n')
			return strings.TrimSpace(strings.TrimPrefix(line, "get ")), err
		},
		Answer:  func(key string) []byte { return []byte("200 " + key + "\n") },
		Endless: "200 x",
	}, openHostile("tcp:host:1"))
}

func TestHostileSocketmapServer(t *testing.T) {
	t.Parallel()
	p := hostile.Protocol{
		Question: func(r *bufio.Reader, _ net.Conn) (string, error) {
			q, err := readNetstring(r, 1000)
			_, key, _ := strings.Cut(q, " ")
			return key, err
		},
		Answer:  func(key string) []byte { return fmt.Appendf(nil, "%d:OK %s,", len(key)+3, key) },
		Endless: "99999:OK x",
		Huge:    "999999999:OK x",
	}
	hostile.Run(t, p, openHostile("socketmap:inet:host:1:m"))
	p.Endless = "1"
	t.Run("length", func(t *testing.T) { hostile.Run(t, p, openHostile("socketmap:inet:host:1:m")) })
}
