package sendlimit

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/sendlimit/limitclient"
	"posthaste/internal/statedir"
	"posthaste/internal/table"
)

func rates(t interface{ Fatal(args ...any) }, text string) []rate.Rate {
	list, err := rate.ParseList(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// In no span of a limit does an account get more recipients than the limit says, and it gets all
// that it asks for where there is room. What was refused does not count.
func TestLedger(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := rates(t, "5/min 12/h")
		l := newLedger()
		now := time.Unix(1_800_000_000, 0)
		sent := map[string]map[int64]int64{"5/min": {}, "12/h": {}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "pause")) * time.Second)
			n := int64(rapid.IntRange(1, 4).Draw(t, "recipients"))
			o := l.spend("ann", limits, n, false, now)
			room := true
			for _, r := range limits {
				if sent[r.String()][now.Unix()/int64(r.Per/time.Second)]+n > r.N {
					room = false
				}
			}
			if o.refused == room {
				t.Fatalf("%d at %v: %+v, room: %v", n, now, o, room)
			}
			if o.refused && o.until <= now.Unix() {
				t.Fatalf("refused until %d, at %d", o.until, now.Unix())
			}
			for _, r := range limits {
				if !o.refused {
					sent[r.String()][now.Unix()/int64(r.Per/time.Second)] += n
				}
			}
			text, err := l.text()
			if err != nil {
				t.Fatal(err)
			}
			if l, err = parseLedger(text); err != nil { // as after a restart
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "sweep") {
				l.sweep(now)
			}
		}
	})
}

// The postmaster is told once in a span, a locked account stays so, and unlock forgets.
func TestLock(t *testing.T) {
	t.Parallel()
	for _, lock := range []bool{false, true} {
		l := newLedger()
		limits := rates(t, "2/d, 9/d")
		day := time.Unix(1_800_000_000, 0).UTC().Truncate(24 * time.Hour)
		for i := range 5 {
			o := l.spend("ann", limits, 1, lock, day.Add(time.Duration(i)*time.Hour))
			want := outcome{}
			switch {
			case i >= 2 && lock && i > 2:
				want = outcome{refused: true, locked: true}
			case i >= 2:
				want = outcome{refused: true, locked: lock, exceeded: limits[0], until: day.Add(24 * time.Hour).Unix(), tell: i == 2}
			}
			if o != want {
				t.Errorf("lock %v, %d: %+v, expected %+v", lock, i, o, want)
			}
		}
		if o := l.spend("joe", limits, 1, lock, day); o.refused {
			t.Errorf("another account: %+v", o)
		}
		if o := l.spend("ann", nil, 1, lock, day); o.refused != lock {
			t.Errorf("without limits: %+v", o)
		}
		l.sweep(day.Add(48 * time.Hour))
		if o := l.spend("ann", limits, 1, lock, day.Add(48*time.Hour)); o.refused != lock {
			t.Errorf("two days later: %+v", o)
		}
		l.unlock("ann")
		if o := l.spend("ann", limits, 2, lock, day); o.refused {
			t.Errorf("unlocked: %+v", o)
		}
	}
}

// The number of accounts is bounded, and those of which nothing counts make room.
func TestBounded(t *testing.T) {
	t.Parallel()
	l := newLedger()
	limits := rates(t, "1/min")
	now := time.Unix(1_800_000_000, 0)
	for i := range maxAccounts + 10 {
		l.spend(fmt.Sprint(i), limits, 1, false, now)
	}
	if len(l.accounts) != maxAccounts {
		t.Errorf("%d accounts", len(l.accounts))
	}
	if o := l.spend("one more", limits, 5, false, now); o.refused {
		t.Errorf("%+v", o)
	}
	if o := l.spend("one more", limits, 5, false, now.Add(time.Minute)); !o.refused || len(l.accounts) != 1 {
		t.Errorf("%+v, %d accounts", o, len(l.accounts))
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"ann":{"counts":{"86400":{"span":1,"n":2}},"locked":true}}`))
	f.Add([]byte(`{"ann":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLedger(text)
		if err != nil {
			return
		}
		at := time.Unix(1_800_000_000, 0)
		l.spend("ann", rates(t, "1/d"), 1, true, at)
		l.sweep(at)
		if again, err := l.text(); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

// A world is the service, and a client of it.
type world struct {
	*limitclient.Client
	s    *server
	log  *strings.Builder
	told []string
	mu   sync.Mutex
	stop func()
}

func start(t *testing.T, dir, main string) *world {
	cfg, err := config.LoadString("compatibility_level = 3.6\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := readLimits(cfg, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{log: new(strings.Builder)}
	log := maillog.New("sendlimit", maillog.NewWriter(w.log, maillog.Classic))
	w.s = &server{limits: limits, lock: cfg.Bool("account_limit_lock"), log: log, dir: state, now: func() time.Time { return time.Unix(1_800_000_000, 0) }}
	w.s.tell = func(subject, text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, subject+"\n"+text)
	}
	if w.s.ledger, err = readLedger(state); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = (&ipc.Server{Handler: w.s.handle}).Serve(ctx, l, time.Second) })
	w.Client = limitclient.New(ipc.Unix(path))
	w.stop = sync.OnceFunc(func() {
		w.Client.Close()
		cancel()
		wg.Wait()
		w.s.wg.Wait()
		if err := w.s.save(); err != nil {
			t.Error(err)
		}
		log.Close()
		limits.maps.Close()
		state.Close()
	})
	t.Cleanup(w.stop)
	return w
}

// What an account has sent outlives the process; the postmaster hears of it once.
func TestService(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	const main = "account_recipient_limit = 3/d\naccount_recipient_limit_maps = inline:{ {big=100/h, 1000/d}, {free=none}, {bad=lots} }\naccount_limit_lock = yes\n"
	spend := func(w *world, account string, n uint64, want string) {
		t.Helper()
		r, err := w.Spend(t.Context(), &proto.Spend{Account: account, Count: n, Client: "client[192.0.2.1]"})
		got := fmt.Sprint(r.Refused, r.Locked, " ", r.Limit, " ", r.Until, " ", err)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s %d: %s, expected %s", account, n, got, want)
		}
	}
	w := start(t, dir, main)
	spend(w, "Ann", 2, "false false  0 <nil>")
	spend(w, "big", 100, "false false  0 <nil>")
	spend(w, "free", 1000, "false false  0 <nil>")
	spend(w, "bad", 1, `false false  0 account_recipient_limit_maps: bad: "lots": a rate is`)
	w.stop()
	w = start(t, dir, main)
	spend(w, "ann", 1, "false false  0 <nil>")
	spend(w, "ann", 1, "true true 3/d 1800057600 <nil>")
	spend(w, "ANN", 1, "true true  0 <nil>")
	spend(w, "big", 1, "true true 100/h")
	if len(w.told) != 2 || !strings.Contains(w.told[0], "The account is locked") || !strings.Contains(w.told[0], "posthaste account unlock ann") {
		t.Errorf("%q", w.told)
	}
	w.stop()
	if !strings.Contains(w.log.String(), "account ann: the limit of 3/d recipients is exceeded, last by client[192.0.2.1]; the account is locked") {
		t.Errorf("%s", w.log)
	}
	w = start(t, dir, main)
	u, err := w.Usage(t.Context(), &proto.Usage{})
	if err != nil || len(u.Accounts) != 2 || u.Accounts[0].Account != "ann" || !u.Accounts[0].Locked || u.Accounts[0].Limits[0].Used != 3 || u.More {
		t.Errorf("%+v %v", u, err)
	}
	if u, err := w.Usage(t.Context(), &proto.Usage{Account: "Ann", Unlock: true}); err != nil || len(u.Accounts) != 1 || !u.Accounts[0].Locked {
		t.Errorf("%+v %v", u, err)
	}
	spend(w, "ann", 3, "false false  0 <nil>")
	for _, q := range []*proto.Spend{{Count: 1}, {Account: "x"}, {Account: strings.Repeat("x", maxName+1), Count: 1}, {Account: "x", Count: maxCount + 1}} {
		if _, err := w.Spend(t.Context(), q); err == nil || !strings.Contains(err.Error(), "malformed request") {
			t.Errorf("%v", err)
		}
	}
}

// An account has its limit once, also where its user may log in with the domain and without it.
func TestRealm(t *testing.T) {
	t.Parallel()
	w := start(t, filepath.Join(t.TempDir(), "state"), "smtpd_sasl_local_domain = Example.org\naccount_recipient_limit = 3/d\n"+
		"account_recipient_limit_maps = inline:{ {big=5/d}, {full@example.org=4/d} }\n")
	for account, limit := range map[string]uint64{"ann": 3, "big": 5, "full": 4, "eve@example.net": 3} {
		other := account + "@EXAMPLE.org"
		if strings.Contains(account, "@") {
			other = account
		}
		if r, err := w.Spend(t.Context(), &proto.Spend{Account: account, Count: limit - 1, Client: "c"}); err != nil || r.Refused {
			t.Errorf("%s: %+v, %v", account, r, err)
		}
		if r, err := w.Spend(t.Context(), &proto.Spend{Account: other, Count: 1, Client: "c"}); err != nil || r.Refused {
			t.Errorf("%s: %+v, %v", other, r, err)
		}
		for _, name := range []string{account, other} {
			if r, err := w.Spend(t.Context(), &proto.Spend{Account: name, Count: 1, Client: "c"}); err != nil || !r.Refused {
				t.Errorf("%s has more than its limit: %+v, %v", name, r, err)
			}
			if u, err := w.Usage(t.Context(), &proto.Usage{Account: name}); err != nil || len(u.Accounts) != 1 || u.Accounts[0].Limits[0].Used != int64(limit) {
				t.Errorf("%s: %+v, %v", name, u, err)
			}
		}
	}
}

// A file that cannot be read is an error: whoever has used up a limit would have another.
func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(`{"ann":`), 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if _, err := readLedger(state); err == nil || !strings.Contains(err.Error(), "sendlimit/sent: ") {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"lots", "5/fortnight"} {
		cfg, err := config.LoadString("compatibility_level = 3.6\naccount_recipient_limit = " + text + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readLimits(cfg, table.Options{}); err == nil || !strings.Contains(err.Error(), "account_recipient_limit: ") {
			t.Errorf("%v", err)
		}
	}
}
