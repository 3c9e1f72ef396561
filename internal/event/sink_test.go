package event

import (
	"reflect"
	"strings"
	"testing"
	"time"
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
