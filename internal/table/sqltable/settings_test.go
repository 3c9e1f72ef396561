package sqltable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/table"
)

func TestParseHost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"db": "tcp db:99", "db:1": "tcp db:1", "inet:db:1": "tcp db:1", "inet:db": "tcp db:99", "unix:/run/x": "unix /run/x",
		"192.0.2.1": "tcp 192.0.2.1:99", "[2001:db8::1]": "tcp [2001:db8::1]:99", "[2001:db8::1]:5": "tcp [2001:db8::1]:5", "2001:db8::1": "tcp [2001:db8::1]:99",
		"unix:": "", "unix:run": "", "": "", ":5": "", "db:": "", "[::1]x": "",
	} {
		w, err := parseHost(text, "99")
		got := w.network + " " + w.addr
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %q (%v), expected %q", text, got, err, want)
		}
	}
}

// order tells the names of the servers to be asked.
func order(h *hosts) string {
	var names []string
	for _, s := range h.order(time.Now()) {
		names = append(names, s.name)
	}
	return strings.Join(names, " ")
}

// Local servers come first, those that failed last; a server's complaint about
// a query is no failure of the server.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, s := &host{name: "a"}, &host{name: "b"}, &host{name: "s", local: true}
		h := &hosts{list: []*host{a, b, s}, retry: time.Minute}
		seen := make(map[string]bool)
		for range 200 {
			seen[order(h)] = true
		}
		if !seen["s a b"] || !seen["s b a"] || len(seen) != 2 {
			t.Errorf("orders %v", seen)
		}
		h.recordResult(s, errors.New("down"))
		h.recordResult(a, &reply{errors.New("no such column")})
		for range 20 {
			if got := order(h); strings.Contains(got, "s") {
				t.Errorf("at once: %s", got)
			}
		}
		time.Sleep(2 * time.Second)
		if got := order(h); !strings.HasSuffix(got, " s") {
			t.Errorf("after a moment: %s", got)
		}
		time.Sleep(time.Minute)
		if got := order(h); !strings.HasPrefix(got, "s ") {
			t.Errorf("after retry_interval: %s", got)
		}
		h.recordResult(s, nil)
		for _, one := range h.list {
			h.recordResult(one, errors.New("down"))
		}
		if got := order(h); got != "" {
			t.Errorf("all have failed: %s", got)
		}
		if err := h.each(func(*host) error { t.Error("asked"); return nil }); err == nil || !strings.Contains(err.Error(), "a failed 0s ago: down") {
			t.Error(err)
		}
		time.Sleep(again)
		if got := order(h); len(got) != 5 {
			t.Errorf("a second later: %s", got)
		}
		if got := order(h); got != "" {
			t.Errorf("while they are tried: %s", got)
		}
	})
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()
	const good = "dbname = d\nquery = SELECT 1\n"
	for _, d := range dialects {
		for text, want := range map[string]string{
			"dbname = d":                                "query: is required",
			"query = SELECT 1":                          "dbname: is required",
			good + "hosts = unix:x":                     "hosts: ",
			good + "hosts = a:b:c:d:e:f:0:1:2":          "hosts: ",
			good + "charset = gbk":                      "mysql charset: ",
			good + "encoding = sjis":                    "pgsql encoding: ",
			good + "tls_cert_file = /nonexistent":       "mysql client certificate: ",
			good + "tls_CAfile = /nonexistent":          "mysql CA certificates: ",
			good + "option_file = /nonexistent":         "mysql /nonexistent",
			good + "max_connections = 0":                "max_connections: ",
			good + "result_format = %":                  "result_format: ",
			good + "hosts = postgresql://u:secret@h:x/": "pgsql hosts: ",
		} {
			if kind, rest, ok := strings.Cut(want, " "); ok && (kind == "mysql" || kind == "pgsql") {
				if want = rest; kind != d.name {
					continue
				}
			}
			path := filepath.Join(t.TempDir(), "t.cf")
			if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			tab, err := d.open(nil)(path, table.Options{})
			switch {
			case err == nil:
				tab.Close()
				if want != "" {
					t.Errorf("%s: %s is taken", d.name, text)
				}
			case !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret"):
				t.Errorf("%s: %s: %v, expected %s", d.name, text, err, want)
			}
		}
	}
}

func TestOptionFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "my.cnf")
	text := "[mysqld]\nuser=no\n[client]\nuser = mail\npassword=\"se cret\"\n# c\nssl_ca=/x\n[mine]\nuser='other'\n[client-mariadb]\nuser=no\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for group, user := range map[string]string{"": "mail", "mine": "other"} {
		o, err := readOptionFile(path, group)
		if err != nil || o["user"] != user || o["password"] != "se cret" || o["ssl-ca"] != "/x" || len(o) != 3 {
			t.Errorf("%s: %v %v", group, o, err)
		}
	}
}

func TestHostName(t *testing.T) {
	t.Parallel()
	if got := hostName("postgresql://u:p@ss@h:1/d?password=x"); strings.Contains(got, "p@ss") || strings.Contains(got, "password") {
		t.Error(got)
	}
}
