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
	"sync"
	"time"
)

// maxTCP bounds a query to a tcp server and its answer.
const maxTCP = 100000

func (o *Options) maxQuery() int { return cmp.Or(o.MaxQuery, 10000) }

func (o *Options) maxReply() int { return cmp.Or(o.MaxReply, 100000) }

// server keeps connections to one lookup server. A connection serves one
// request at a time; those that are idle are used again.
type server struct {
	network, addr string
	opt           Options

	mu     sync.Mutex
	idle   []*serverConn
	closed bool
}

type serverConn struct {
	net.Conn
	r *bufio.Reader
}

const maxIdleConns = 4

// parseEndpoint reads unix:/path, inet:host:port or host:port.
func parseEndpoint(text string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return "unix", path, nil
	}
	text = strings.TrimPrefix(text, "inet:")
	if _, _, err := net.SplitHostPort(text); err != nil {
		return "", "", fmt.Errorf("%q: expected unix:/path, or host:port", text)
	}
	return "tcp", text, nil
}

// take returns an idle connection, or a new one. old says which it is.
func (s *server) take(ctx context.Context) (c *serverConn, old bool, err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, false, ErrClosed
	}
	if n := len(s.idle); n > 0 {
		c = s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c, true, nil
	}
	s.mu.Unlock()
	dial := s.opt.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, s.network, s.addr)
	if err != nil {
		return nil, false, err
	}
	return &serverConn{conn, bufio.NewReader(conn)}, false, nil
}

// give keeps a connection for later, or closes it.
func (s *server) give(c *serverConn) {
	s.mu.Lock()
	if !s.closed && len(s.idle) < maxIdleConns {
		s.idle = append(s.idle, c)
		c = nil
	}
	s.mu.Unlock()
	if c != nil {
		_ = c.Close() // nothing was in flight on it
	}
}

// roundTrip sends a request and has read take the reply. A kept connection that
// turns out to be dead is replaced once, so that a server's restart does not
// show.
func (s *server) roundTrip(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.opt.timeout())
	defer cancel()
	for {
		c, old, err := s.take(ctx)
		if err != nil {
			return err
		}
		err = c.exchange(ctx, request, read)
		if err == nil {
			s.give(c)
			return nil
		}
		_ = c.Close() // err says more
		if !old || ctx.Err() != nil {
			return err
		}
	}
}

func (c *serverConn) exchange(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // wakes the read or write that is waiting
	})
	err := c.write(request)
	if err == nil {
		err = read(c.r)
	}
	if !stop() && err == nil {
		// The deadline has been put into the past: the connection is of no more
		// use.
		return context.Cause(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *serverConn) write(b []byte) error {
	_, err := c.Write(b)
	return err
}

// Close closes the connections that are idle; those in use are closed when they
// become so.
func (s *server) Close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
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
	network, addr, err := parseEndpoint(name[:i])
	if err != nil {
		return nil, err
	}
	return &socketmap{server{network: network, addr: addr, opt: o}, name[i+1:]}, nil
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
	network, addr, err := parseEndpoint(name)
	if err != nil {
		return nil, err
	}
	return &tcpTable{server{network: network, addr: addr, opt: o}}, nil
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
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxTCP {
			return "", fmt.Errorf("reply is longer than %d bytes", maxTCP)
		}
		if err == nil {
			return strings.TrimRight(string(line), "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", unexpectedEOF(err)
		}
	}
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
