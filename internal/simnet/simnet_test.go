package simnet

import (
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"net/textproto"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

// Each kind does what the package comment says of it.
func TestKinds(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	t.Run("crowded", func(t *testing.T) {
		h := New(Profile{Kind: Crowded, Sessions: 2, Reply: "421 4.7.0 too many"}, 1)
		for i := range 4 {
			if got := h.Connect(start, "a").OK(); got != (i < 2) {
				t.Errorf("session %d is taken: %v", i, got)
			}
		}
		if !h.Connect(start, "b").OK() {
			t.Error("another client is refused")
		}
		h.Leave(start, "a")
		if !h.Connect(start, "a").OK() {
			t.Error("refused, although one has left")
		}
	})
	t.Run("metered", func(t *testing.T) {
		h := New(Profile{Kind: Metered, Messages: 3, Span: time.Minute, Penalty: 5 * time.Minute, Reply: "421 4.7.28 slower"}, 1)
		for i, c := range []struct {
			at time.Duration
			ok bool
		}{{0, true}, {1, true}, {2, true}, {time.Minute - 1, false}, {5 * time.Minute, false}, {6*time.Minute - 1, true}} {
			if a := h.Hear(at(c.at), "a", "x", "y"); a.OK() != c.ok || !c.ok && (a.Code != 421 || a.Text != "4.7.28 slower") {
				t.Errorf("%d: %+v", i, a)
			}
		}
	})
	t.Run("grey", func(t *testing.T) {
		h := New(Profile{Kind: Grey, Delay: time.Minute, Reply: "450 4.2.0 Greylisted"}, 1)
		for i, c := range []struct {
			at   time.Duration
			rcpt string
			ok   bool
		}{{0, "y", false}, {59 * time.Second, "y", false}, {time.Minute, "y", true}, {time.Minute, "z", false}} {
			if a := h.Hear(at(c.at), "a", "x", c.rcpt); a.OK() != c.ok {
				t.Errorf("%d: %+v", i, a)
			}
		}
	})
	t.Run("slow", func(t *testing.T) {
		h := New(Profile{Kind: Slow, Sessions: 2, Took: time.Second}, 1)
		for range 6 {
			h.Connect(start, "a")
		}
		if a := h.Hear(start, "a", "x", "y"); a.Took != 3*time.Second {
			t.Errorf("six sessions for two workers: %v", a.Took)
		}
	})
	t.Run("dead", func(t *testing.T) {
		if a := New(Profile{Kind: Dead}, 1).Connect(start, "a"); !a.Away() {
			t.Errorf("%+v", a)
		}
	})
}

// Who sends slowly draws few complaints at a time and is not refused; who goes on at full speed is, for the most part.
func TestJudged(t *testing.T) {
	t.Parallel()
	refused := func(every time.Duration) float64 {
		h := New(Profiles()["yahoo"], 3)
		for i := range 4000 {
			h.Hear(start.Add(time.Duration(i)*every), "a", "x", "y")
		}
		return float64(h.Counted().Refused) / 4000
	}
	if slow, fast := refused(10*time.Second), refused(50*time.Millisecond); slow > .01 || fast < .5 {
		t.Errorf("%g is refused of one every ten seconds, %g of twenty a second", slow, fast)
	}
}

// The same seed gives the same answers, another one others.
func TestSeed(t *testing.T) {
	t.Parallel()
	play := func(seed uint64) (out string) {
		h := New(Profiles()["yahoo"], seed)
		for i := range 500 {
			out += fmt.Sprint(h.Hear(start.Add(time.Duration(i)*time.Second/10), "a", "x", "y"))
		}
		return out
	}
	one := play(1)
	if again, other := play(1), play(2); again != one || other == one {
		t.Error("answers do not follow the seed")
	}
}

// Every profile can be met over a socket, and says there what it says in virtual time.
func TestServe(t *testing.T) {
	t.Parallel()
	for name, p := range Profiles() {
		p.Greeting, p.Took, p.Span = 0, 0, time.Hour
		if p.Kind == Dead || p.Kind == Judged {
			continue // one says nothing, the other refuses by chance
		}
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := Serve(l, New(p, 1))
			defer s.Close()
			var last error
			for range max(p.Sessions, p.Messages, 1) + 1 {
				c, err := smtp.Dial(l.Addr().String())
				if err != nil {
					last = err
					break
				}
				defer c.Close()
				if last = transaction(c); last != nil {
					break
				}
			}
			got := ""
			if e := (*textproto.Error)(nil); errors.As(last, &e) {
				got = fmt.Sprint(e.Code, " ", e.Msg)
			}
			if got != p.Reply {
				t.Errorf("the last was told %q (%v), not %q", got, last, p.Reply)
			}
		})
	}
}

// transaction sends one message.
func transaction(c *smtp.Client) error {
	if err := c.Mail("a@example.org"); err != nil {
		return err
	}
	if err := c.Rcpt("joe@example.com"); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Subject: x\r\n\r\n..\r\n")
	return w.Close()
}
