package srs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// today is day JQ of the time stamps.
var today = time.Date(2026, 11, 27, 7, 0, 0, 0, time.UTC)

func forwarder() *Rewriter {
	return &Rewriter{Domain: "fwd.test", Secrets: []string{"first secret", "second secret"}, Separator: '=', HashLength: 4, HashMinimum: 4, MaxDays: 21}
}

// The hashes were computed from the definition with another program (Python's hmac and base64).
// Those of example.com are the addresses that postsrsd 2.4 makes of the same secret at the same
// time.
func TestForward(t *testing.T) {
	t.Parallel()
	peer := &Rewriter{Domain: "example.com", Secrets: []string{"tops3cr3t"}, Separator: '=', HashLength: 4, HashMinimum: 4, MaxDays: 21}
	then := time.Unix(1577836860, 0)
	long := forwarder()
	long.HashLength = MaxHash
	plus := forwarder()
	plus.Separator = '+'
	for _, c := range []struct {
		r            *Rewriter
		now          time.Time
		sender, want string
	}{
		{peer, then, "test@otherdomain.com", "SRS0=vmyz=2W=otherdomain.com=test@example.com"},
		{peer, then, "sender@otherdomain.com", "SRS0=9KJ-=2W=otherdomain.com=sender@example.com"},
		{peer, then, "SRS0+opaque+string@otherdomain.com", "SRS1=Ux-g=otherdomain.com=+opaque+string@example.com"},
		{forwarder(), today, "ann@sender.test", "SRS0=QsOT=JQ=sender.test=ann@fwd.test"},
		{forwarder(), today, "Ann.Smith+x@Sender.TEST", "SRS0=GnFY=JQ=Sender.TEST=Ann.Smith+x@fwd.test"},
		{forwarder(), today, "a=b=c@sender.test", "SRS0=OBXj=JQ=sender.test=a=b=c@fwd.test"},
		{forwarder(), today, "list+a=to.test@sender.test", "SRS0=bTfb=JQ=sender.test=list+a=to.test@fwd.test"},
		{long, today, "ann@sender.test", "SRS0=QsOTr5hcS8wYezG4_keHxMdmdIg=JQ=sender.test=ann@fwd.test"},
		{plus, today, "ann@sender.test", "SRS0+QsOT=JQ=sender.test=ann@fwd.test"},
		// Rewritten elsewhere, with each separator, and in a case that a host on the way has chosen.
		{forwarder(), today, "SRS0=abcd=XY=sender.test=ann@first.test", "SRS1=HbLA=first.test==abcd=XY=sender.test=ann@fwd.test"},
		{forwarder(), today, "srs0-abcd=XY=sender.test=ann@first.test", "SRS1=6OcR=first.test=-abcd=XY=sender.test=ann@fwd.test"},
		// Rewritten twice: the first forwarder stays.
		{forwarder(), today, "SRS1=zzzz=first.test==abcd=XY=sender.test=ann@second.test", "SRS1=HbLA=first.test==abcd=XY=sender.test=ann@fwd.test"},
		// What only looks like it is somebody's name.
		{forwarder(), today, "srs0team@sender.test", "SRS0=7L96=JQ=sender.test=srs0team@fwd.test"},
		{forwarder(), today, "SRS1=broken@sender.test", "SRS0=RuJV=JQ=sender.test=SRS1=broken@fwd.test"},
		// Not rewritten.
		{forwarder(), today, "", ""},
		{forwarder(), today, "ann", "ann"},
		{forwarder(), today, "ann@", "ann@"},
		{forwarder(), today, "@sender.test", "@sender.test"},
		{forwarder(), today, "ann@sender=test", "ann@sender=test"},
		{forwarder(), today, "SRS0=QsOT=JQ=sender.test=ann@FWD.test", "SRS0=QsOT=JQ=sender.test=ann@FWD.test"},
		{forwarder(), today, strings.Repeat("a", 500) + "@sender.test", strings.Repeat("a", 500) + "@sender.test"},
		{nil, today, "ann@sender.test", "ann@sender.test"},
	} {
		got, ok := c.r.Forward(c.sender, c.now)
		if got != c.want || ok != (got != c.sender) {
			t.Errorf("Forward(%s) = %s, %v, not %s", c.sender, got, ok, c.want)
		}
	}
}

func TestReverse(t *testing.T) {
	t.Parallel()
	strict := forwarder()
	strict.HashMinimum, strict.HashLength = 8, 8
	day := 24 * time.Hour
	for _, c := range []struct {
		r    *Rewriter
		late time.Duration
		addr string
		want string
		err  error
	}{
		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 0, "SRS0+QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 0, "SRS0-QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 0, "srs0=qsot=jq=SENDER.test=ANN@Fwd.Test", "ANN@SENDER.test", nil},
		{forwarder(), 0, "SRS0=QsOTr5hcS8wYezG4_keHxMdmdIg=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 0, "SRS0=QsOTr5hcS8wYezG4/keH=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil}, // of older programs
		{forwarder(), 0, "SRS0=K9sm=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},                 // the secret of before
		{forwarder(), 0, "SRS0=OBXj=JQ=sender.test=a=b=c@fwd.test", "a=b=c@sender.test", nil},
		{forwarder(), 0, "SRS1=HbLA=first.test==abcd=XY=sender.test=ann@fwd.test", "SRS0=abcd=XY=sender.test=ann@first.test", nil},
		{forwarder(), 0, "SRS1=6OcR=first.test=-abcd=XY=sender.test=ann@fwd.test", "SRS0-abcd=XY=sender.test=ann@first.test", nil},
		{forwarder(), 1000 * day, "SRS1=HbLA=first.test==abcd=XY=sender.test=ann@fwd.test", "SRS0=abcd=XY=sender.test=ann@first.test", nil}, // has no time

		{forwarder(), 21 * day, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 22 * day, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "", ErrExpired},
		{forwarder(), -1 * day, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), -2 * day, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "", ErrExpired},
		{forwarder(), 1024 * day, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil}, // cannot be told apart

		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test=bob@fwd.test", "", ErrHash},
		{forwarder(), 0, "SRS0=QsOT=JQ=other.test=ann@fwd.test", "", ErrHash},
		{forwarder(), 0, "SRS0=QsOT=JR=sender.test=ann@fwd.test", "", ErrHash},
		{forwarder(), 0, "SRS0=QsO=JQ=sender.test=ann@fwd.test", "", ErrHash},
		{forwarder(), 0, "SRS0=QsOTr5hcS8wYezG4_keHxMdmdIgg=JQ=sender.test=ann@fwd.test", "", ErrHash},
		{strict, 0, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "", ErrHash},
		{strict, 0, "SRS0=QsOTr5hc=JQ=sender.test=ann@fwd.test", "ann@sender.test", nil},
		{forwarder(), 0, "SRS1=HbLA=second.test==abcd=XY=sender.test=ann@fwd.test", "", ErrHash},

		{forwarder(), 0, "SRS0=@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS0=QsOT@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS0=QsOT=JQ@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test=@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS1=HbLA@fwd.test", "", ErrSyntax},
		{forwarder(), 0, "SRS1=HbLA=first.test@fwd.test", "", ErrSyntax},

		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test=ann@other.test", "", ErrNotSRS},
		{forwarder(), 0, "srs0team@fwd.test", "", ErrNotSRS},
		{forwarder(), 0, "SRS0@fwd.test", "", ErrNotSRS},
		{forwarder(), 0, "SRS2=QsOT=JQ=sender.test=ann@fwd.test", "", ErrNotSRS},
		{forwarder(), 0, "SRS0=QsOT=JQ=sender.test=ann", "", ErrNotSRS},
		{forwarder(), 0, "", "", ErrNotSRS},
		{nil, 0, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "", ErrNotSRS},
	} {
		got, err := c.r.Reverse(c.addr, today.Add(c.late))
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%v later: Reverse(%s) = %q, %v, not %q, %v", c.late, c.addr, got, err, c.want, c.err)
		}
	}
}

// part is what may be in a local part or a domain.
func part(chars string) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.RuneFrom([]rune(chars)), 1, 40, -1)
}

// An address that was made leads back, over one forwarder and over several, for as long as
// it is valid and whatever its case became on the way. A changed one does not lead anywhere.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		local := part("abcXYZ019=+-.!%@/_ \"öß").Draw(t, "local")
		if tagged(local, "SRS0") || tagged(local, "SRS1") {
			return
		}
		sender := local + "@" + part("abcXYZ019-.").Draw(t, "domain")
		now := today.AddDate(0, 0, rapid.IntRange(0, 3000).Draw(t, "day"))
		hops := make([]*Rewriter, rapid.IntRange(1, 4).Draw(t, "forwarders"))
		addr := sender
		made := make([]string, len(hops))
		for i := range hops {
			hops[i] = &Rewriter{Domain: "fwd" + string(rune('a'+i)) + ".test", Secrets: []string{rapid.String().Draw(t, "secret") + string(rune('a'+i))},
				Separator: rapid.SampledFrom([]byte(Separators)).Draw(t, "separator"), HashLength: rapid.IntRange(MinHash, MaxHash).Draw(t, "length"),
				HashMinimum: MinHash, MaxDays: rapid.IntRange(1, MaxDays).Draw(t, "age")}
			var ok bool
			if addr, ok = hops[i].Forward(addr, now); !ok {
				t.Fatalf("%s is not rewritten", addr)
			}
			made[i] = addr
		}
		last := hops[len(hops)-1]
		back, err := last.Reverse(made[len(made)-1], now)
		if len(hops) > 1 {
			// Directly to the first forwarder, not by way of those between.
			if err != nil || back != made[0] {
				t.Fatalf("back by %v, %v, not %s", back, err, made[0])
			}
			back, err = hops[0].Reverse(back, now.AddDate(0, 0, hops[0].MaxDays))
		}
		if err != nil || back != sender {
			t.Fatalf("%s: back to %s, %v, not %s", made, back, err, sender)
		}
		lowered := string(lower(made[0]))
		if back, err := hops[0].Reverse(lowered, now); err != nil || back != string(lower(sender)) {
			t.Fatalf("%s: %s, %v", lowered, back, err)
		}
		if len(hops) == 1 && hops[0].MaxDays < MaxDays {
			if back, err := hops[0].Reverse(made[0], now.AddDate(0, 0, hops[0].MaxDays+1)); err != ErrExpired {
				t.Fatalf("too old: %s, %v", back, err)
			}
		}
		if back, err := hops[0].Reverse(strings.Replace(made[0], "@", "x@", strings.Count(made[0], "@")), now); err == nil && hops[0].HashLength > 8 {
			t.Fatalf("a changed address leads to %s", back)
		}
	})
}

// Whatever a stranger writes leads somewhere only with a hash of ours, and what a sender
// writes becomes an address that does.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"ann@sender.test", "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "SRS1=HbLA=first.test==abcd=XY=sender.test=ann@fwd.test",
		"SRS1=zzzz=first.test==abcd@second.test", "SRS0+@fwd.test", "SRS1===@x", "@", "0@=", "SRS0=\xff=\x00=@fwd.test"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		r := forwarder()
		if back, err := r.Reverse(addr, today); err == nil {
			again, ok := r.Forward(back, today)
			if !ok || !r.Ours(again) {
				t.Errorf("%q leads to %q, which is not rewritten", addr, back)
			}
		}
		made, ok := r.Forward(addr, today)
		if !ok {
			return
		}
		if len(made) > maxBytes || !r.Ours(made) {
			t.Fatalf("%q becomes %q", addr, made)
		}
		back, err := r.Reverse(made, today)
		if err != nil || !strings.HasPrefix(made, "SRS1") && back != addr {
			t.Errorf("%q becomes %q, and that %q, %v", addr, made, back, err)
		}
	})
}

// Addresses of further domains are made when one of these is wanted, and are taken apart as the others are. A domain that is
// not among them makes none.
func TestFurtherDomains(t *testing.T) {
	t.Parallel()
	r := forwarder()
	r.Domains = []string{"one.test", "two.test"}
	for own, want := range map[string]string{"one.test": "one.test", "TWO.test": "two.test", "three.test": "fwd.test", "": "fwd.test", "fwd.test": "fwd.test"} {
		made, ok := r.ForwardAs(own, "ann@sender.test", today)
		if !ok || made != "SRS0=QsOT=JQ=sender.test=ann@"+want {
			t.Errorf("%q: %s, %v", own, made, ok)
		}
		if back, err := r.Reverse(strings.ToUpper(made[:5])+made[5:], today); err != nil || back != "ann@sender.test" {
			t.Errorf("%s leads to %s, %v", made, back, err)
		}
		if again, ok := r.ForwardAs("one.test", made, today); ok {
			t.Errorf("an address that was made here is rewritten: %s", again)
		}
	}
	if _, err := r.Reverse("SRS0=QsOT=JQ=sender.test=ann@three.test", today); err != ErrNotSRS {
		t.Errorf("an address of another domain: %v", err)
	}
}
