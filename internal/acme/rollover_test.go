package acme

import (
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/servercert"
)

const zone = `example.org. NS ns1.example.org.
example.org. NS ns2.example.org.
ns1.example.org. A 192.0.2.1
ns2.example.org. A 192.0.2.2
mail.example.org. A 192.0.2.3
`

// A world has a manager whose zone is on two name servers.
type world struct {
	*manager
	p       *pretender
	l       *lines
	servers [2]string // their records, besides those of zone
	silent  bool      // the second one
	dir     string    // of the store
	t       *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cfg := load(t, basic+"data_directory = "+t.TempDir()+"\n")
	set, err := read(cfg)
	if err != nil {
		t.Fatal(err)
	}
	store, err := servercert.OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: servercert.Directory(cfg), p: &pretender{life: 9 * 24 * time.Hour}, l: new(lines), t: t}
	names := fakezone.Must(zone).Resolver()
	t.Cleanup(func() { names.Close(); store.Close() })
	w.manager = &manager{set: set, store: store, ca: w.p, log: w.l, spread: func() float64 { return 0.5 }, look: lookAgain, view: &view{nameserver.View[asker]{DNS: names, At: w.at}}}
	w.turn(t.Context())
	return w
}

func (w *world) at(addr netip.Addr) (asker, func()) {
	text := zone + w.servers[addr.As4()[3]-1]
	if w.silent && addr.As4()[3] == 2 {
		text = "!fail example.org SERVFAIL\n!fail _25._tcp.mail.example.org SERVFAIL\n"
	}
	c := resolver.New(resolver.Options{Exchanger: fakezone.Must(text), Hosts: os.DevNull, CacheSize: -1})
	return c, c.Close
}

// after lets time pass, and says whose key the servers have now.
func (w *world) after(d time.Duration) *x509.Certificate {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(nextLook) {
		w.turn(w.t.Context())
	}
	w.turn(w.t.Context())
	chain, err := w.store.Chain()
	if err != nil {
		w.t.Fatal(err)
	}
	return chain[0]
}

// record is a TLSA record of a key.
func record(t *testing.T, key any) string {
	t.Helper()
	data, err := servercert.TLSA(key)
	if err != nil {
		t.Fatal(err)
	}
	return "_25._tcp.mail.example.org. 3600 IN TLSA " + data + "\n"
}

// TestRollover: the next key is not used before every name server has shown its TLSA record for two
// times the TTL, if there are TLSA records; the former one serves meanwhile, and is renewed.
func TestRollover(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]bool{"with DANE": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				first := w.after(time.Hour).PublicKey
				old := ""
				if published {
					old = record(t, first)
				}
				w.servers = [2]string{old, old}
				key, err := w.store.MakeNext("ecdsa")
				if err != nil {
					t.Fatal(err)
				}
				if !published {
					if !servercert.SameKey(w.after(nextLook).PublicKey, key.Public()) || w.store.HasNext() {
						t.Errorf("the next key waits for nothing: %s", w.l.text())
					}
					return
				}
				stays := func(d time.Duration, why string) {
					t.Helper()
					if !servercert.SameKey(w.after(d).PublicKey, first) {
						t.Errorf("%s, and the next key is used: %s", why, w.l.text())
					}
				}
				stays(7*24*time.Hour, "nobody shows its record")
				if len(w.p.attempts()) != 2 {
					t.Errorf("%d certificates of the present key, wanted a renewal", len(w.p.attempts()))
				}
				both := old + record(t, key.Public())
				w.servers[0] = both
				stays(24*time.Hour, "one server does not show its record")
				w.servers[1], w.silent = both, true
				stays(24*time.Hour, "one server does not answer")
				w.silent = false
				stays(110*time.Minute, "two times the TTL have not passed")
				w.servers[1] = old
				stays(20*time.Minute, "one server has forgotten its record")
				w.servers[1] = both
				stays(110*time.Minute, "two times the TTL have not passed since it is shown again")
				w.turn(t.Context())
				if got := w.after(30 * time.Minute); !servercert.SameKey(got.PublicKey, key.Public()) || w.store.HasNext() {
					t.Errorf("the next key is not used: %s", w.l.text())
				}
				w.turn(t.Context())
				if present, err := w.store.Key("rsa"); err != nil || !servercert.SameKey(present.Public(), key.Public()) {
					t.Errorf("the key is another: %v", err)
				}
				data, _ := servercert.TLSA(first)
				for _, want := range []string{"the next key waits: not every name server shows its record; publish: _25._tcp.mail.example.org. IN TLSA 3 1 1 ",
					"the next key waits: it is not known whether", "a TLSA record of the former one, " + data} {
					if n := strings.Count(w.l.text(), want); n == 0 || n > 3 {
						t.Errorf("%d times %q in the log: %s", n, want, w.l.text())
					}
				}
			})
		})
	}
}

// TestRolloverInterrupted: between the certificate of the next key and its promotion, everything may
// end. Then it goes on there, and no other certificate is requested.
func TestRolloverInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		key, err := w.store.MakeNext("ecdsa")
		if err != nil {
			t.Fatal(err)
		}
		present := w.after(0)
		// As at the end of manager.obtain.
		text, _, err := w.p.obtain(t.Context(), nil, key, present)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.store.SaveChain(key, text); err != nil {
			t.Fatal(err)
		}
		attempts := len(w.p.attempts())
		w.manager = &manager{set: w.set, store: w.store, ca: w.p, log: w.l, spread: w.spread, look: lookAgain, view: w.view}
		w.turn(t.Context())
		if now, err := w.store.Key("ecdsa"); err != nil || !servercert.SameKey(now.Public(), key.Public()) || w.store.HasNext() || len(w.p.attempts()) != attempts {
			t.Errorf("%v, %d attempts; %s", err, len(w.p.attempts())-attempts, w.l.text())
		}
		// A next key that cannot be read does not keep the present one from being renewed.
		if _, err := w.store.MakeNext("ecdsa"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.dir, "next.pem"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.after(7 * 24 * time.Hour)
		if len(w.p.attempts()) != attempts+1 || strings.Count(w.l.text(), "the next key waits: ") != 1 {
			t.Errorf("%d attempts; %s", len(w.p.attempts())-attempts, w.l.text())
		}
	})
}
