package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A sink is the next hop: it takes everything, and counts it.
type sink struct {
	l          net.Listener
	deliveries atomic.Int64 // recipients of messages that have come whole
	last, gap  atomic.Int64 // when the last one came, and the longest time between two, in nanoseconds
	conns      sync.WaitGroup
	mu         sync.Mutex
	open       map[net.Conn]struct{}
	tally      tally // since the last inquiry
	asked      atomic.Pointer[inquiry]
}

func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return sinkOn(l), nil
}

// sinkOn is one that listens already.
func sinkOn(l net.Listener) *sink {
	s := &sink{l: l, open: make(map[net.Conn]struct{})}
	s.asked.Store(new(inquiry))
	s.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = struct{}{}
			s.mu.Unlock()
			s.conns.Go(func() {
				s.session(c)
				s.mu.Lock()
				delete(s.open, c)
				s.mu.Unlock()
			})
		}
	})
	return s
}

// close ends it, and all sessions.
func (s *sink) close() {
	s.l.Close()
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
}

func (s *sink) port() int { return s.l.Addr().(*net.TCPAddr).Port }

// session answers each command with success. Replies to what came together go together.
func (s *sink) session(c net.Conn) {
	defer c.Close()
	h := &hop{s: s, c: c, r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriter(c)}
	h.w.WriteString("220 sink.test ESMTP\r\n")
	for {
		if h.r.Buffered() == 0 && h.w.Flush() != nil {
			return
		}
		line, err := h.r.ReadSlice('\n')
		if err != nil || len(line) < 4 {
			return
		}
		switch string(bytes.ToUpper(line[:4])) {
		case "EHLO":
			h.w.WriteString(h.greeting())
		case "STAR":
			if h.secure() != nil {
				return
			}
		case "RCPT":
			h.recipient(line)
			h.w.WriteString("250 2.1.5 Ok\r\n")
		case "DATA":
			h.w.WriteString("354 go on\r\n")
			if h.w.Flush() != nil || h.message() != nil {
				return
			}
			h.w.WriteString("250 2.0.0 Ok\r\n")
		case "QUIT":
			h.w.WriteString("221 2.0.0 Bye\r\n")
			h.w.Flush()
			return
		default:
			h.w.WriteString("250 2.0.0 Ok\r\n")
		}
	}
}

// A hop is a session of the next hop.
type hop struct {
	s      *sink
	c      net.Conn
	r      *bufio.Reader
	w      *bufio.Writer
	rcpts  int64 // of the message that comes
	named  int64 // of them, those whose names are as the inquiry has them
	number int   // the message's, if the inquiry has stamps
	text   []byte
}

// greeting is the reply to EHLO.
func (h *hop) greeting() string {
	secure := ""
	if _, already := h.c.(*tls.Conn); h.s.asked.Load().tls != nil && !already {
		secure = "250-STARTTLS\r\n"
	}
	return "250-sink.test\r\n250-PIPELINING\r\n" + secure + "250-SIZE\r\n250 8BITMIME\r\n"
}

// recipient notes the recipient of a command.
func (h *hop) recipient(line []byte) {
	h.rcpts++
	name := h.s.asked.Load().name
	if name == "" {
		return
	}
	_, address, _ := bytes.Cut(line, []byte{'<'})
	if number, ok := bytes.CutPrefix(address, []byte(name)); ok {
		h.named++
		number, _, _ = bytes.Cut(number, []byte{'@'})
		h.number, _ = strconv.Atoi(string(number))
	}
}

// message reads a message, and counts it.
func (h *hop) message() error {
	q := h.s.asked.Load()
	text, marked, err := readText(h.r, q.mark, h.text[:0], q.take != nil || h.s.wantsText())
	if err != nil {
		return err
	}
	h.text = text
	if q.take != nil {
		if err := q.take(text); err != nil {
			return err
		}
	}
	now := time.Now().UnixNano()
	if q.stamps != nil && h.named > 0 && h.number < len(q.stamps.ended) {
		q.stamps.ended[h.number].Store(now)
	}
	h.s.count(h, marked)
	h.s.deliveries.Add(h.rcpts)
	if gap := now - h.s.last.Swap(now); gap > h.s.gap.Load() {
		h.s.gap.Store(gap) // of two at the same moment either may count
	}
	h.rcpts, h.named = 0, 0
	return nil
}

// readText reads a message to its final dot. marked says whether a line begins with mark, if there is a mark. The
// text, without the dot, is added to what is given, if it is to be kept.
func readText(r *bufio.Reader, mark string, text []byte, keep bool) (_ []byte, marked bool, err error) {
	for begins := true; ; {
		line, err := r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return nil, false, err
		}
		if begins && string(line) == ".\r\n" {
			return text, marked, nil
		}
		marked = marked || begins && mark != "" && len(line) >= len(mark) && string(line[:len(mark)]) == mark
		if keep {
			text = append(text, line...)
		}
		begins = err == nil
	}
}
