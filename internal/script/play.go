package script

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// play carries out a dialogue and returns it as it went.
func (w *world) play(text string) string {
	p := &player{world: w}
	var out strings.Builder
	lines := strings.SplitAfter(text, "\n")
	if n := len(lines); lines[n-1] == "" {
		lines = lines[:n-1]
	}
	i := 0
	for i < len(lines) {
		if isClient(lines[i]) {
			var send []byte
			for i < len(lines) && isClient(lines[i]) {
				send = append(send, clientBytes(lines[i])...)
				out.WriteString(lines[i])
				i++
			}
			p.send(send)
			continue
		}
		if strings.HasPrefix(lines[i], "S:") {
			n := 0
			for i < len(lines) && strings.HasPrefix(lines[i], "S:") {
				if !moreLines(lines[i]) {
					n++
				}
				i++
			}
			out.WriteString(p.expect(n))
			continue
		}
		out.WriteString(lines[i])
		p.directive(strings.TrimSuffix(lines[i], "\n"))
		i++
	}
	return out.String()
}

func isClient(line string) bool {
	return strings.HasPrefix(line, "C: ") || strings.HasPrefix(line, "C- ") || line == "C:\n"
}

func clientBytes(line string) []byte {
	line = strings.TrimSuffix(line, "\n")
	if rest, raw := strings.CutPrefix(line, "C- "); raw {
		return unescape(rest)
	}
	line = strings.TrimPrefix(strings.TrimPrefix(line, "C:"), " ")
	return []byte(line + "\r\n")
}

func unescape(s string) []byte {
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'r':
			b = append(b, '\r')
		case 'n':
			b = append(b, '\n')
		case 't':
			b = append(b, '\t')
		case 'x':
			if i+2 < len(s) {
				var c byte
				fmt.Sscanf(s[i+1:i+3], "%02x", &c)
				b = append(b, c)
				i += 2
			}
		case '*': // \*N*text* : text N times
			var n int
			rest := s[i+1:]
			if a, tail, ok := strings.Cut(rest, "*"); ok {
				if text, _, ok := strings.Cut(tail, "*"); ok {
					fmt.Sscan(a, &n)
					b = append(b, strings.Repeat(string(unescape(text)), n)...)
					i += len(a) + len(text) + 2
				}
			}
		default:
			b = append(b, s[i])
		}
	}
	return b
}

type player struct {
	world *world
	br    *bufio.Reader
}

func (p *player) send(b []byte) {
	if p.world.conn == nil { // before the greeting
		p.open(b)
		return
	}
	p.world.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := p.world.conn.Write(b); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		p.world.t.Errorf("send: %v", err)
	}
}

func (p *player) open(ahead []byte) {
	p.world.connect(ahead)
	p.br = bufio.NewReader(p.world.conn)
}

// moreLines says that a line is one of a reply, and not its last.
func moreLines(line string) bool { return len(line) > 6 && line[:3] == "S: " && line[6] == '-' }

// expect reads n replies, or up to the end of the connection.
func (p *player) expect(n int) string {
	if p.world.conn == nil {
		p.open(nil)
	}
	var out strings.Builder
	for i := 0; i < n; {
		p.world.conn.SetReadDeadline(time.Now().Add(patience))
		line, err := p.br.ReadString('\n')
		if err != nil {
			if line != "" {
				out.WriteString("S: " + line + "\n")
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				p.world.t.Error("the server says nothing")
				out.WriteString("S:SILENCE\n")
			} else {
				out.WriteString("S:EOF\n")
			}
			break
		}
		text, crlf := strings.CutSuffix(line, "\r\n")
		if !crlf {
			p.world.t.Errorf("server line %q does not end in CRLF", line)
		}
		if len(text) < 4 || text[3] != '-' {
			i++
		}
		out.WriteString("S: " + p.world.plain(text) + "\n")
	}
	return out.String()
}

func (p *player) directive(line string) {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(line, "#") {
		return
	}
	w := p.world
	switch words[0] {
	case "connect":
		if w.conn != nil {
			w.conn.Close()
			w.waitSessions()
			w.conn = nil
		}
		if len(words) > 1 {
			w.peer = words[1]
		}
	case "also": // one more connection, the old one stays
		w.others = append(w.others, w.conn)
		w.conn = nil
	case "close":
		w.conn.Close()
		w.waitSessions()
		w.conn = nil
	case "reset": // as a client does that dies
		if t, ok := w.conn.(*net.TCPConn); ok {
			t.SetLinger(0)
		}
		w.conn.Close()
		w.waitSessions()
		w.conn = nil
	case "dial": // where the server waits for the client to begin
		p.open(nil)
	case "shut":
		if c, ok := w.conn.(interface{ CloseWrite() error }); ok {
			c.CloseWrite()
		}
	case "drain":
		w.srv.Drain()
	case "starttls":
		cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10}
		for _, word := range words[1:] {
			switch word {
			case "cert":
				pair, err := tls.LoadX509KeyPair(filepath.Join(w.dir, "cert.pem"), filepath.Join(w.dir, "cert.pem"))
				if err != nil {
					w.t.Fatal(err)
				}
				cfg.Certificates = []tls.Certificate{pair}
			case "tls1.0":
				cfg.MaxVersion = tls.VersionTLS10
			case "tls1.2":
				cfg.MaxVersion = tls.VersionTLS12
			}
		}
		c := tls.Client(w.conn, cfg)
		c.SetDeadline(time.Now().Add(patience))
		if err := c.Handshake(); (err != nil) != slices.Contains(words, "fails") {
			w.t.Errorf("TLS handshake: %v", err)
		}
		w.conn = c
		p.br = bufio.NewReader(c)
	case "silence":
		w.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if b, err := p.br.Peek(1); err == nil || err == io.EOF {
			w.t.Errorf("the server says something it should not: %q %v", b, err)
		}
	default:
		w.t.Errorf("unknown line %q", line)
	}
}

// waitReadable returns when something has arrived on c.
func waitReadable(c *net.TCPConn) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Now().Add(patience))
	rc.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err == nil && n > 0
	})
	c.SetReadDeadline(time.Time{})
}
