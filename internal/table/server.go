package table

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/lockstep"
)

// maxTCP bounds a query to a tcp server and its answer.
const maxTCP = 100000

func (o *Options) maxQuery() int { return cmp.Or(o.MaxQuery, 10000) }

func (o *Options) maxReply() int { return cmp.Or(o.MaxReply, 100000) }

// server is a lookup server: its connections, and how long one request may take.
type server struct {
	lockstep.Pool
	timeout time.Duration
	opt     Options
}

// serve fills a server in. It is where it stays: its pool is not copied.
func (s *server) serve(network, addr string, o Options) {
	s.opt, s.timeout = o, o.timeout()
	s.Network, s.Addr, s.Pool.Dial = network, addr, o.Dial
}

// roundTrip sends a request and has read take the reply.
func (s *server) roundTrip(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Ask(ctx, request, read)
}

// ParseEndpoint reads unix:/path, inet:host:port or host:port.
func ParseEndpoint(text string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return "unix", path, nil
	}
	text = strings.TrimPrefix(text, "inet:")
	if _, _, err := net.SplitHostPort(text); err != nil {
		return "", "", fmt.Errorf("%q: expected unix:/path, or host:port", text)
	}
	return "tcp", text, nil
}

// socketmap is Sendmail's protocol: "name key" as a netstring, answered by a
// netstring OK value, NOTFOUND, TEMP, TIMEOUT or PERM with a reason.
type socketmap struct {
	server
	mapName string
}

// openSocketmap reads inet:host:port:name or unix:path:name.
func openSocketmap(name string, o Options) (Table, error) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 || i == len(name)-1 {
		return nil, errors.New("expected socketmap:inet:host:port:name or socketmap:unix:path:name")
	}
	network, addr, err := ParseEndpoint(name[:i])
	if err != nil {
		return nil, err
	}
	t := &socketmap{mapName: name[i+1:]}
	t.serve(network, addr, o)
	return t, nil
}

func (t *socketmap) Pattern() bool { return true }

func (t *socketmap) Lookup(ctx context.Context, key string) (string, bool, error) {
	size := len(t.mapName) + 1 + len(key)
	if size > t.opt.maxQuery() {
		return "", false, nil // no such key, as far as this protocol can say
	}
	request := strconv.Itoa(size) + ":" + t.mapName + " " + key + ","
	var reply string
	err := t.roundTrip(ctx, []byte(request), func(r *bufio.Reader) (err error) {
		reply, err = readNetstring(r, t.opt.maxReply())
		return err
	})
	if err != nil {
		return "", false, err
	}
	verb, rest, _ := strings.Cut(reply, " ")
	switch verb {
	case "OK":
		return rest, true, nil
	case "NOTFOUND":
		return "", false, nil
	case "TEMP", "TIMEOUT", "PERM":
		return "", false, fmt.Errorf("socketmap server %s error: %.200q", strings.ToLower(verb), rest)
	}
	return "", false, fmt.Errorf("socketmap server: unknown reply %.200q", reply)
}

var errNetstring = errors.New("malformed netstring in reply")

// readNetstring reads a netstring of limit octets at most.
func readNetstring(r *bufio.Reader, limit int) (string, error) {
	n := 0
	for digits := 0; ; digits++ {
		c, err := r.ReadByte()
		if err != nil {
			return "", unexpectedEOF(err)
		}
		if c == ':' && digits > 0 {
			break
		}
		if c < '0' || c > '9' || digits > 8 {
			return "", errNetstring
		}
		n = n*10 + int(c-'0')
	}
	if n > limit {
		return "", fmt.Errorf("reply of %d bytes is over the limit of %d (socketmap_max_reply_size)", n, limit)
	}
	b := make([]byte, n+1)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", unexpectedEOF(err)
	}
	if b[n] != ',' {
		return "", errNetstring
	}
	return string(b[:n]), nil
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// tcpTable is the protocol of tcp_table(5): "get key", answered by
// "200 value", "500 reason" for not found, "400 reason" for an error; white
// space and percent signs are encoded as %XX.
type tcpTable struct{ server }

func openTCP(name string, o Options) (Table, error) {
	network, addr, err := ParseEndpoint(name)
	if err != nil {
		return nil, err
	}
	t := &tcpTable{}
	t.serve(network, addr, o)
	return t, nil
}

func (t *tcpTable) Pattern() bool { return true }

func (t *tcpTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	if len(key) > maxTCP {
		return "", false, nil
	}
	var line string
	err := t.roundTrip(ctx, []byte("get "+percentEncode(key)+"\n"), func(r *bufio.Reader) (err error) {
		line, err = readReplyLine(r)
		return err
	})
	if err != nil {
		return "", false, err
	}
	code, text, ok := strings.Cut(line, " ")
	if ok {
		text, ok = percentDecode(text)
	}
	if !ok {
		return "", false, fmt.Errorf("tcp table server: malformed reply %.200q", line)
	}
	switch code {
	case "200":
		return text, true, nil
	case "500":
		return "", false, nil
	case "400":
		return "", false, fmt.Errorf("tcp table server: %.200q", text)
	}
	return "", false, fmt.Errorf("tcp table server: unknown reply %.200q", line)
}

func readReplyLine(r *bufio.Reader) (string, error) {
	line, err := lockstep.ReadLine(r, maxTCP)
	return string(line), unexpectedEOF(err)
}

const hexDigits = "0123456789ABCDEF"

func percentEncode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 127 || c == '%' {
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func percentDecode(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 > len(s) {
			return "", false
		}
		v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(v))
		i += 2
	}
	return b.String(), true
}
