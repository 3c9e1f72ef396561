package event

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
)

func TestParseSinks(t *testing.T) {
	t.Parallel()
	list, err := ParseSinks([]string{
		"file:/var/lib/posthaste/events/mail.json",
		"file:/var/log/mail.json, name=log, size_limit=1m keep=0",
		"webhook:https://hooks.example.com/mail?x=1, name=crm, secret_file=/etc/crm, events=bounced+expired, batch=5, format=ndjson, timeout=5s",
		"webhook:http://127.0.0.1:8080/",
		"kafka:k1.example.com:9092/mail, broker=[2001:db8::1]:9092, tls=yes, tls_CAfile=/etc/ca.pem, sasl_file=/etc/kafka",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Sink{
		{Type: File, Name: "file", Target: "/var/lib/posthaste/events/mail.json", Batch: 10000, SizeLimit: 100 << 20, Former: 5},
		{Type: File, Name: "log", Target: "/var/log/mail.json", Batch: 10000, SizeLimit: 1 << 20},
		{Type: Webhook, Name: "crm", Target: "https://hooks.example.com/mail?x=1", Batch: 5, Timeout: 5 * time.Second, SecretFile: "/etc/crm", Lines: true,
			Kinds: []Kind{Bounced, Expired}},
		{Type: Webhook, Name: "webhook", Target: "http://127.0.0.1:8080/", Batch: 100, Timeout: 30 * time.Second},
		{Type: Kafka, Name: "kafka", Target: "mail", Batch: 1000, Brokers: []string{"k1.example.com:9092", "[2001:db8::1]:9092"}, TLS: true,
			CAFile: "/etc/ca.pem", SASLFile: "/etc/kafka"},
	}
	if !reflect.DeepEqual(list, want) {
		t.Errorf("got  %+v\nwant %+v", list, want)
	}
	if s := &list[2]; !s.Wants(Bounced) || s.Wants(Delivered) || !list[0].Wants(Delivered) {
		t.Error("kinds")
	}
}

func TestParseSinksWrong(t *testing.T) {
	t.Parallel()
	for item, want := range map[string]string{
		"mail.json":                                               "expected file:",
		"file:mail.json":                                          "absolute path",
		"file:/a/../b":                                            "absolute path",
		"file:/a, batch=0":                                        "1 to 10000",
		"file:/a, size_limit=5":                                   "at least 64k",
		"file:/a, name=a/b":                                       "letters",
		"file:/a, events=sent":                                    "no kind",
		"file:/a, color=red":                                      "unknown setting",
		"file:/a, color":                                          "name=value",
		"file:/a, secret_file=/":                                  "no setting of file",
		"webhook:http://hooks.example.com/":                       "clear text",
		"webhook:ftp://hooks.example.com/":                        "expected https",
		"webhook:https://u:p@hooks.example.com/":                  "no password",
		"webhook:https://h/, secret_file=x":                       "absolute path",
		"webhook:https://h/, timeout=1d":                          "1 to 600",
		"kafka:k1.example.com/mail":                               "host:port/topic",
		"kafka:k1.example.com:9092":                               "host:port/topic",
		"kafka:k1.example.com:9092/a b":                           "name=value",
		"kafka:k1.example.com:9092/a/b":                           "name of a topic",
		"kafka:k1.example.com:9092/mail, sasl_file=/etc/k":        "need tls=yes",
		"kafka:127.0.0.1:9092/mail, broker=k:1, sasl_file=/etc/k": "need tls=yes",
		"":                                      "expected file:",
		"webhook:https://h/, tls_CAfile=ca.pem": "absolute path",
		"webhook:https://h/, tls=yes":           "no setting of webhook",
	} {
		if _, err := ParseSinks([]string{item}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", item, err, want)
		}
	}
	if _, err := ParseSinks([]string{"file:/a", "file:/b"}); err == nil || !strings.Contains(err.Error(), "two sinks of the name file") {
		t.Errorf("two of a name: %v", err)
	}
}

// Two sinks do not write to one file, nor does one to what another one's is renamed to, or to the files of the journal.
func TestSinksApart(t *testing.T) {
	t.Parallel()
	for other, apart := range map[string]bool{
		"/var/log/mail.json": false, "/var/log/mail.json.1": false, "/var/log/mail.json.17": false, "/var/log/mail.json.torn": false,
		"/var/log/mail.json.torn.2": false, "/var/log/mail.json.torn.new": false, "/var/log/mail.json.2025": false, "/var/log/mail.json.old": true, "/var/log/mail.json1": true,
		"/var/log/mail": true, "/var/log/mail.json.": true, "/var/log/mail.json.tornado": true, "/srv/mail.json": true} {
		for _, list := range [][]string{{"/var/log/mail.json", other}, {other, "/var/log/mail.json"}} {
			_, err := ParseSinks([]string{"file:" + list[0], "file:" + list[1] + ", name=b"})
			if (err == nil) != apart || err != nil && !strings.Contains(err.Error(), "the sink file writes to this file") {
				t.Errorf("%q: %v", list, err)
			}
		}
	}
	if _, err := ParseSinks([]string{"webhook:https://h/x", "webhook:https://h/x, name=b", "webhook:https://h/x.1, name=c"}); err != nil {
		t.Error(err)
	}
	for path, apart := range map[string]bool{
		"/var/lib/events/mail.json": true, "/var/lib/events/lock": false, "/var/lib/events/position.crm": false, "/var/lib/events/dead.crm": false,
		"/var/lib/events/0000000000000001.events": false, "/var/log/lock": true, "/var/lib/events/x/dead.crm": true} {
		cfg, err := config.LoadString("event_directory = /var/lib/events\nevent_sinks = file:" + path + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Sinks(cfg); (err == nil) != apart || err != nil && !strings.Contains(err.Error(), "in event_directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// No item makes it panic, and what it takes has what carriers rely on.
func FuzzParseSinks(f *testing.F) {
	f.Add("file:/var/log/mail.json, size_limit=1m, keep=3")
	f.Add("webhook:https://h/?a=b, name=x, secret_file=/x, format=json, timeout=9")
	f.Add("kafka:h:1/t, broker=h:2, tls=yes, sasl_file=/x, tls_CAfile=/y")
	f.Fuzz(func(t *testing.T, item string) {
		list, err := ParseSinks([]string{item})
		if err != nil {
			return
		}
		s := &list[0]
		if s.Name == "" || strings.ContainsAny(s.Name, "/.") || s.Batch < 1 || s.Target == "" || s.Type == Kafka && len(s.Brokers) == 0 {
			t.Errorf("%+v", s)
		}
	})
}
