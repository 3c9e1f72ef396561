package domain

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/tabletext"

	"posthaste/internal/resolver/fakezone"
)

// newRotating is a site whose domain new.test was just added. Its zone has two name servers.
func newRotating(t *testing.T, settings string) *stage {
	s := newEmpty(t, settings)
	s.zone = "new.test. NS ns1.new.test.\nnew.test. NS ns2.new.test.\nns1.new.test. A 192.0.2.53\nns2.new.test. A 198.51.100.53\nns2.new.test. AAAA 2001:db8::53\nmail.a.test. A 192.0.2.1\n"
	if _, errs, status := s.run(t, "add", "--class=local", "--ed25519", "new.test"); status != 0 {
		t.Fatal(errs)
	}
	return s
}

// publish puts the records of the keys that rotate waits for into the zone.
func (s *stage) publish(t *testing.T) {
	t.Helper()
	for _, r := range s.rotate(t).Publish {
		s.zone += strings.ReplaceAll(r.String(), "\n", " ") + "\n"
	}
}

// rotate runs the command.
func (s *stage) rotate(t *testing.T, args ...string) (got rotation) {
	t.Helper()
	out, errs, status := s.again(t, append([]string{"rotate", "-j"}, append(args, "new.test")...)...)
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err, out)
	}
	return got
}

// states are the keys and their states in a line.
func (s *stage) states(t *testing.T) string {
	r, err := parseRing("new.test", s.read(t, "dkim/new.test.keys"))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, k := range r.keys {
		words = append(words, k.Selector+" "+string(k.State))
	}
	return strings.Join(words, ", ")
}

// A key lives from the record that is not published to the record that may be removed, and signs
// only in between.
func TestRotate(t *testing.T) {
	t.Parallel()
	s := newRotating(t, "dkim_key_retire_time = 14d\ndkim_key_lifetime = 180d\n")
	step := func(what, states, entry string, args ...string) {
		t.Helper()
		s.rotate(t, args...)
		if got := s.states(t); got != states {
			t.Errorf("%s: %s, expected %s", what, got, states)
		}
		want := ""
		for _, selector := range strings.Fields(entry) {
			want += ", " + selector + ":" + filepath.Join(s.dir, "dkim", "new.test."+selector+".pem")
		}
		value, _, err := tabletext.File{Path: s.dir + "/dkim_keys"}.Get("new.test")
		if err != nil || value != strings.TrimPrefix(want, ", ") {
			t.Errorf("%s: the table has %s, expected %s", what, value, want)
		}
	}
	step("not published", "202611a pending, 202611ae pending", "")
	s.publish(t)
	zone := s.zone
	s.zone = strings.Replace(zone, "202611ae._domainkey", "202611x._domainkey", 1)
	step("one is published", "202611a active, 202611ae pending", "202611a")
	s.zone = zone
	step("both are", "202611a active, 202611ae active", "202611a 202611ae")
	before := tree(t, s.dir)
	step("nothing to do", "202611a active, 202611ae active", "202611a 202611ae")
	same(t, before, tree(t, s.dir))
	step("asked for", "202611a active, 202611ae active, 202611b pending, 202611be pending", "202611a 202611ae", "--new")
	step("asked for again", "202611a active, 202611ae active, 202611b pending, 202611be pending", "202611a 202611ae", "--new")
	s.publish(t)
	step("published", "202611a retiring, 202611ae retiring, 202611b active, 202611be active", "202611b 202611be")
	s.now = s.now.Add(14*24*time.Hour - time.Second)
	step("mail is under way", "202611a retiring, 202611ae retiring, 202611b active, 202611be active", "202611b 202611be")
	s.now = s.now.Add(time.Second)
	step("it has arrived", "202611a retired, 202611ae retired, 202611b active, 202611be active", "202611b 202611be")
	if _, err := os.Stat(filepath.Join(s.dir, "dkim", "new.test.202611a.pem")); !os.IsNotExist(err) {
		t.Errorf("the key that has retired: %v", err)
	}
	s.now = s.now.Add(166 * 24 * time.Hour)
	step("old enough", "202611a retired, 202611ae retired, 202611b active, 202611be active, 202705a pending, 202705ae pending", "202611b 202611be")
}

// A key is not used while one server does not show its record, whatever the reason.
func TestRotateVisible(t *testing.T) {
	t.Parallel()
	s := newRotating(t, "")
	s.publish(t)
	good := s.zone
	for _, tt := range []struct {
		name   string
		break_ func(*stage)
		want   string // empty: it is visible
	}{
		{"all show it", func(*stage) {}, ""},
		{"one has the zone of before", func(s *stage) { s.views = map[string]string{"198.51.100.53": "new.test. NS ns1.new.test.\n"} }, "name server ns2.new.test[198.51.100.53]: "},
		{"one has another key", func(s *stage) {
			s.views = map[string]string{"192.0.2.53": "202611a._domainkey.new.test. TXT \"v=DKIM1; k=rsa; p=AAAA\"\n"}
		}, "is another record"},
		{"one has two", func(s *stage) {
			s.views = map[string]string{"192.0.2.53": good + "202611a._domainkey.new.test. TXT \"v=DKIM1; k=rsa; p=AAAA\"\n"}
		}, "has 2 records"},
		{"an address is silent, and the other one answers", func(s *stage) {
			s.views = map[string]string{"2001:db8::53": "!fail 202611a._domainkey.new.test SERVFAIL\n!fail 202611ae._domainkey.new.test SERVFAIL\n"}
		}, ""},
		{"a server is silent", func(s *stage) {
			s.views = map[string]string{"192.0.2.53": "!fail 202611a._domainkey.new.test SERVFAIL\n"}
		}, "name server ns1.new.test: "},
		{"a server has no address", func(s *stage) { s.zone = strings.Replace(good, "ns1.new.test. A 192.0.2.53\n", "", 1) }, "name server ns1.new.test: "},
		{"a key that may not sign mail", func(s *stage) { s.zone = strings.ReplaceAll(good, "v=DKIM1; ", "v=DKIM1; s=tlsrpt; ") }, "is another record"},
		{"the servers are not known", func(s *stage) { s.zone = strings.ReplaceAll(good, " NS ", " HINFO x ") }, ""},
		{"the resolver does not see it", func(s *stage) {
			s.views = map[string]string{"192.0.2.53": good, "198.51.100.53": good, "2001:db8::53": good}
			s.zone = strings.ReplaceAll(good, "._domainkey.", "._other.")
		}, "the resolver of this system: "},
		{"the DNS does not answer", func(s *stage) { s.zone = good + "!fail new.test SERVFAIL NS\n" }, "new.test"},
		{"an alias in another zone", func(s *stage) {
			s.zone = good[:strings.Index(good, "202611a.")] + strings.ReplaceAll(good[strings.Index(good, "202611a."):], "._domainkey.new.test.", "._domainkey.other.test.") +
				"202611a._domainkey.new.test. CNAME 202611a._domainkey.other.test.\n202611ae._domainkey.new.test. CNAME 202611ae._domainkey.other.test.\n"
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.zone, s.views = good, nil
			tt.break_(s)
			got := s.rotate(t, "--dry-run")
			waits := strings.Join(got.Waits, "\n")
			if tt.want == "" && (waits != "" || len(got.Changed) == 0) || tt.want != "" && !strings.Contains(waits, tt.want) {
				t.Errorf("waits for %q, expected %q; changed %v", waits, tt.want, got.Changed)
			}
		})
	}
	if got := s.states(t); got != "202611a pending, 202611ae pending" {
		t.Errorf("--dry-run has changed the states: %s", got)
	}
}

// A run that ends between its steps leaves mail signed with keys that are published, and the next
// run does the rest.
func TestRotateInterrupted(t *testing.T) {
	t.Parallel()
	s := newRotating(t, "")
	s.publish(t)
	// The entry is made, the state is not written.
	file := filepath.Join(s.dir, "dkim", "new.test.202611a.pem")
	s.write(t, "dkim_keys", "new.test\t202611a:"+file+"\n")
	if s.rotate(t); s.states(t) != "202611a active, 202611ae active" {
		t.Error(s.states(t))
	}
	// The same where one takes the place of another.
	s.rotate(t, "--new")
	s.publish(t)
	s.write(t, "dkim_keys", "new.test\t202611b:"+strings.Replace(file, "1a.pem", "1b.pem", 1)+"\n")
	if s.rotate(t); s.states(t) != "202611a retiring, 202611ae retiring, 202611b active, 202611be active" {
		t.Error(s.states(t))
	}
	// The file of states is lost: what signs is found again.
	if err := os.Remove(filepath.Join(s.dir, "dkim", "new.test.keys")); err != nil {
		t.Fatal(err)
	}
	if s.rotate(t); s.states(t) != "202611b active, 202611be active" {
		t.Error(s.states(t))
	}
}

// Without a domain, all are looked at; -q tells only what is to be done. Keys that are in no table
// that can be edited are left alone.
func TestRotateAll(t *testing.T) {
	t.Parallel()
	s := newRotating(t, "")
	s.publish(t)
	out, errs, status := s.again(t, "rotate", "-q")
	if status != 0 || errs != "" || !strings.Contains(out, "new.test: "+s.dir+"/dkim/new.test.keys: 202611a is active, 202611ae is active\n") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	if out, errs, status = s.again(t, "rotate", "-q"); status != 0 || out+errs != "" {
		t.Errorf("nothing to do, quietly: status %d, %s%s", status, out, errs)
	}
	if out, _, _ = s.again(t, "rotate"); out != "new.test: nothing to do\n" {
		t.Error(out)
	}
	s.main += "dkim_sign_maps = inline:{ new.test=s1:" + s.dir + "/dkim/new.test.202611a.pem } texthash:" + s.dir + "/dkim_keys\n"
	s.write(t, "dkim_keys", "")
	if _, errs, status = s.run(t, "rotate"); status != 78 || !strings.Contains(errs, "another table than") {
		t.Errorf("another table: status %d, %s", status, errs)
	}
	s.main = strings.Replace(s.main, "texthash:"+s.dir+"/dkim_keys", "", 1)
	if _, errs, status = s.run(t, "rotate"); status != 78 || !strings.Contains(errs, "no table that can be edited") {
		t.Errorf("no table: status %d, %s", status, errs)
	}
}

// A check says what a key waits for, and when a record may go.
func TestCheckKeys(t *testing.T) {
	t.Parallel()
	s := newRotating(t, "")
	find := func(level Level, text string) {
		t.Helper()
		out, errs, _ := s.again(t, "check", "-o", "", "new.test")
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, level.String()) && strings.Contains(line, "dkim") && strings.Contains(line, text) {
				return
			}
		}
		t.Errorf("no %s with %q:\n%s%s", level, text, out, errs)
	}
	find(Warning, "202611a._domainkey.new.test does not exist: the key is pending")
	s.publish(t)
	find(Note, "202611a._domainkey.new.test is published, and the key is pending")
	s.rotate(t)
	find(Good, "202611a._domainkey.new.test is the key in")
	s.rotate(t, "--new")
	s.publish(t)
	s.rotate(t)
	find(Good, "202611a._domainkey.new.test is still published")
	s.zone = strings.ReplaceAll(s.zone, "202611a._domainkey", "gone._domainkey")
	find(Warning, "202611a._domainkey.new.test does not exist: mail that was signed with the key may still be under way")
	s.zone = strings.ReplaceAll(s.zone, "gone._domainkey", "202611a._domainkey")
	s.now = s.now.Add(15 * 24 * time.Hour)
	s.rotate(t)
	find(Note, "202611a._domainkey.new.test may be removed")
}

// view is what a name server of the stage's world shows.
func (s *stage) view(t *testing.T, addr netip.Addr) (Asker, func()) {
	text, ok := s.views[addr.String()]
	if !ok {
		text = s.zone
	}
	zone, err := fakezone.Parse(text)
	if err != nil {
		t.Error(err)
		zone = fakezone.Must("")
	}
	r := zone.Resolver()
	return r, r.Close
}
