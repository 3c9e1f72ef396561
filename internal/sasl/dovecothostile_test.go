package sasl

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"posthaste/internal/lockstep"
	"posthaste/internal/lockstep/hostile"
)

const dovecotGreeting = "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\tabc\nDONE\n"

func dovecotGreet(r *bufio.Reader, c net.Conn) error {
	for range 2 {
		if _, err := r.ReadString('\n'); err != nil {
			return err
		}
	}
	_, err := io.WriteString(c, dovecotGreeting)
	return err
}

// hostileDovecot says that everybody is who he says that he is.
var hostileDovecot = hostile.Protocol{
	Greet: dovecotGreet,
	Question: func(r *bufio.Reader, _ net.Conn) (string, error) {
		line, err := r.ReadString('\n')
		_, resp, _ := strings.Cut(strings.TrimSpace(line), "\tresp=")
		user, _ := base64.StdEncoding.DecodeString(resp)
		return string(user), err
	},
	Answer:  func(key string) []byte { return []byte("OK\t1\tuser=" + key + "\n") },
	Endless: "OK\t1\tuser=x",
	Fresh:   true,
	Lenient: true, // a connection is for one login, which has come to its end with the first
}

func dovecotClient(t *testing.T, path string) hostile.Client {
	d := NewDovecot(path)
	d.timeout = 2 * time.Second
	t.Cleanup(d.Close)
	return func(key string) (string, error) {
		x, err := d.Start(t.Context(), "PLAIN", Client{Service: "smtp"})
		if err != nil {
			return "", err
		}
		defer x.Close()
		_, done, err := x.Next(t.Context(), []byte(key))
		if err == nil && !done {
			err = errors.New("not done")
		}
		return x.Username(), err
	}
}

func TestHostileDovecot(t *testing.T) {
	t.Parallel()
	hostile.Run(t, hostileDovecot, dovecotClient)
	news := hostileDovecot
	news.Endless = "MECH\tA\n" // and then empty lines
	t.Run("news without end", func(t *testing.T) { hostile.Run(t, news, dovecotClient) })
}

// dovecotDialogue runs one login against what a server says: after the greeting, and after each line of ours.
func dovecotDialogue(t *testing.T, greeting string, answers ...string) error {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		if dovecotGreet(r, c) != nil {
			return
		}
		io.WriteString(c, greeting)
		for _, a := range answers {
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
			io.WriteString(c, a)
		}
		r.ReadByte()
	}()
	defer func() { l.Close(); <-done }()
	d := NewDovecot(l.Addr().String())
	x, err := d.Start(t.Context(), "PLAIN", Client{Service: "smtp"})
	if err != nil {
		return err
	}
	defer x.Close()
	for range answers {
		done := false
		if _, done, err = x.Next(t.Context(), []byte("joe")); err != nil || done {
			return err
		}
	}
	return errors.New("not done")
}

// An answer that comes before what it could be an answer to logs nobody in.
func TestDovecotUnasked(t *testing.T) {
	t.Parallel()
	if err := dovecotDialogue(t, "", "CONT\t1\tYQ==\n", "OK\t1\tuser=joe\n"); err != nil {
		t.Error(err)
	}
	if err := dovecotDialogue(t, "", "NEWS\t1\nCONT\t1\tYQ==\nNEWS\t2\n", "OK\t1\tuser=joe\n"); err != nil {
		t.Error("with news:", err)
	}
	if err := dovecotDialogue(t, "", "CONT\t1\tYQ==\nOK\t1\tuser=root\n", "FAIL\t1\n"); !errors.Is(err, lockstep.ErrUnasked) {
		t.Errorf("two answers at once: %v", err)
	}
}
