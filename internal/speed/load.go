package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// dialogueTime bounds a session: what takes longer is a failure, not a figure.
const dialogueTime = 5 * time.Minute

// send sends the messages of a round to a mail system, and returns when all have been acknowledged.
func (w *workload) send(addr string) error {
	var next atomic.Int64
	text := w.text()
	failed := make(chan error, w.sessions)
	var wg sync.WaitGroup
	for range w.sessions {
		wg.Go(func() {
			for {
				more, err := w.session(addr, text, &next)
				if err != nil {
					failed <- err
				}
				if err != nil || !more {
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// session sends as many messages as go over one connection. more says that there are some left.
func (w *workload) session(addr string, text []byte, next *atomic.Int64) (more bool, err error) {
	n := int(next.Add(1)) - 1
	if n >= w.messages {
		return false, nil
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(dialogueTime))
	k := &client{c: c, r: bufio.NewReader(c)}
	k.hear("220")
	k.say("EHLO load.test\r\n", "250")
	if w.secured != nil {
		k.secure(w.secured)
	}
	for sent := 1; ; sent++ {
		k.message(w, n, text)
		if w.perConn > 0 && sent >= w.perConn {
			more = true
			break
		}
		if n = int(next.Add(1)) - 1; n >= w.messages || k.err != nil {
			break
		}
	}
	k.say("QUIT\r\n", "221")
	return more, k.err
}

// A client is one end of a dialogue. After an error it does nothing more.
type client struct {
	c   net.Conn
	r   *bufio.Reader
	err error
}

// message gives an envelope, as one write, and a text.
func (k *client) message(w *workload, n int, text []byte) {
	var b strings.Builder
	fmt.Fprintf(&b, "MAIL FROM:<%s>\r\n", w.sender(n))
	want := []string{"250"}
	for i := range w.recipients {
		fmt.Fprintf(&b, "RCPT TO:<%s>\r\n", w.recipient(n, i))
		want = append(want, "250")
	}
	b.WriteString("DATA\r\n")
	if w.stamps != nil {
		w.stamps.begun[n].Store(time.Now().UnixNano())
	}
	k.say(b.String(), append(want, "354")...)
	k.write(text, "250")
}

// say writes, and hears a reply of each of these codes.
func (k *client) say(text string, codes ...string) { k.write([]byte(text), codes...) }

func (k *client) write(text []byte, codes ...string) {
	if k.err == nil {
		_, k.err = k.c.Write(text)
	}
	for _, code := range codes {
		k.hear(code)
	}
}

// hear reads a reply.
func (k *client) hear(code string) {
	for k.err == nil {
		line, err := k.r.ReadString('\n')
		switch {
		case err != nil:
			k.err = err
		case !strings.HasPrefix(line, code) || len(line) < 4:
			k.err = errors.New("the mail system answers " + strings.TrimSpace(line))
		case line[3] == ' ':
			return
		}
	}
}
