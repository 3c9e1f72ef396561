package resolver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// settings play a main.cf.
type settings struct {
	servers string
	trust   bool
	old     bool // conversion of names
}

func (s settings) List(name string) []string {
	if name != "resolver_address" {
		panic(name)
	}
	return strings.Fields(s.servers)
}

func (s settings) Bool(name string) bool {
	switch name {
	case "resolver_trust_ad":
		return s.trust
	case "enable_idna2003_compatibility":
		return s.old
	}
	panic(name)
}

// TestConfinedLater has the files go out of sight, as they do for a process
// that goes into chroot.
func TestConfinedLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	resolv, hosts := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts")
	for file, text := range map[string]string{resolv: "nameserver 192.0.2.53\n", hosts: "192.0.2.1 mail\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := New(Options{ResolvConf: resolv, Hosts: hosts})
	defer c.Close()
	for _, file := range []string{resolv, hosts} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if conf := c.ask.(*wire).conf.get(time.Now().Add(time.Hour)); !slices.Equal(conf.servers, []string{"192.0.2.53:53"}) {
			t.Errorf("%v", conf.servers)
		}
		if found := c.hosts.lookup("mail", IPv4); len(found) != 1 {
			t.Error(found)
		}
	}
}

func TestConfigured(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 192.0.2.53\noptions attempts:4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		set     settings
		want    []string
		trusted bool // is what the first server says of DNSSEC
	}{
		{settings{"", false, false}, []string{"192.0.2.53:53"}, false},
		{settings{"", true, true}, []string{"192.0.2.53:53"}, true},
		{settings{"192.0.2.1 2001:db8::1 192.0.2.2:5353 [::1]:54", false, false}, []string{"192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.2:5353", "[::1]:54"}, false},
		{settings{"127.0.0.1:54", false, false}, []string{"127.0.0.1:54"}, true},
	} {
		o, err := Configured(tc.set)
		if err != nil {
			t.Errorf("%v: %v", tc.set, err)
			continue
		}
		o.ResolvConf = file
		c := New(o)
		conf := c.ask.(*wire).conf.get(time.Now())
		c.Close()
		if !slices.Equal(conf.servers, tc.want) || conf.trusts(conf.servers[0]) != tc.trusted || conf.attempts != 4 || c.opt.Names.Transitional != tc.set.old {
			t.Errorf("%v: %+v", tc.set, conf)
		}
	}
	if _, err := Configured(settings{"192.0.2.1 ns.example", false, false}); err == nil || !strings.Contains(err.Error(), "ns.example") {
		t.Errorf("a name for a server: %v", err)
	}
}
