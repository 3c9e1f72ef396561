package event

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
)

// A SinkType is a way in which events are sent.
type SinkType string

// The types of sinks.
const (
	File    SinkType = "file"    // appended to a file, a JSON object on each line
	Webhook SinkType = "webhook" // sent by HTTP
	Kafka   SinkType = "kafka"   // records of a topic
)

// A Sink is one that events are sent to, as an item of event_sinks says:
//
//	file:/var/lib/posthaste/events/mail.json
//	{ webhook:https://hooks.example.com/mail, name=crm, secret_file=/etc/posthaste/crm.secret, events=bounced+expired }
//	{ kafka:kafka1.example.com:9092/mail, broker=kafka2.example.com:9092, tls=yes }
type Sink struct {
	Type   SinkType
	Name   string // unique; the type where main.cf says nothing
	Target string // the path, the URL, or the topic
	// Kinds are those that it gets, sorted; empty: all.
	Kinds []Kind
	Batch int // events that are sent at once

	// Of a file: how large it becomes before it is renamed, in octets, and how many with former events are kept.
	SizeLimit int64
	Former    int

	// Of a webhook.
	SecretFile string // with the key of the signature; empty: nothing is signed
	Lines      bool   // the body is a JSON object on each line, and not a list
	Timeout    time.Duration

	// Of Kafka.
	Brokers  []string // host:port, to begin with
	SASLFile string   // mechanism, user and password; empty: no authentication

	// Of both.
	TLS    bool   // Kafka: the brokers speak TLS
	CAFile string // certificates of authorities; empty: those of the system
}

// Wants says whether events of a kind are sent there.
func (s *Sink) Wants(k Kind) bool {
	if len(s.Kinds) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(s.Kinds, k)
	return ok
}

// Sinks reads event_sinks.
func Sinks(cfg *config.Config) ([]Sink, error) {
	list, err := ParseSinks(cfg.List("event_sinks"))
	if err != nil {
		return nil, fmt.Errorf("event_sinks: %w", err)
	}
	for i := range list {
		if dir, name := filepath.Split(list[i].Target); list[i].Type == File && filepath.Clean(dir) == filepath.Clean(cfg.String("event_directory")) && ofJournal(name) {
			return nil, fmt.Errorf("event_sinks: file:%s: the journal of events has files of such names in event_directory", list[i].Target)
		}
	}
	return list, nil
}

// ofJournal says whether the journal, or what goes with it, may have a file of a name in its directory.
func ofJournal(name string) bool {
	return name == "lock" || strings.HasPrefix(name, "position.") || strings.HasPrefix(name, "dead.") || strings.HasSuffix(name, ".events")
}

// ParseSinks reads the items of event_sinks.
func ParseSinks(items []string) (list []Sink, err error) {
	names := make(map[string]bool)
	for _, item := range items {
		s, err := parseSink(item)
		if err != nil {
			return nil, err
		}
		if names[s.Name] {
			return nil, fmt.Errorf("%q: there are two sinks of the name %s: give one of them another, with name=", item, s.Name)
		}
		names[s.Name] = true
		for i := range list {
			if list[i].writes(&s) || s.writes(&list[i]) {
				return nil, fmt.Errorf("%q: the sink %s writes to this file, or renames its own to it: give one of them another name", item, list[i].Name)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// writes says whether a file's sink may write to the file of another one: it may be its own, or one of those that this is
// renamed to, or that have what was spoilt.
func (s *Sink) writes(other *Sink) bool {
	rest, ok := strings.CutPrefix(other.Target, s.Target)
	if !ok || s.Type != File || other.Type != File {
		return false
	}
	if torn, ok := strings.CutPrefix(rest, TornSuffix); ok && (torn == "" || torn[0] == '.') {
		return true
	}
	digits, ok := strings.CutPrefix(rest, ".")
	return rest == "" || ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// TornSuffix is what a file has behind its name that has what a power cut has spoilt of another one.
const TornSuffix = ".torn"

// isSeparator says what is between the words of an item.
func isSeparator(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// parseSink reads one item: the target, and then settings of the form name=value.
func parseSink(item string) (s Sink, err error) {
	words := strings.FieldsFunc(item, isSeparator)
	if len(words) == 0 {
		return s, fmt.Errorf("%q: expected file:path, webhook:URL or kafka:host:port/topic", item)
	}
	kind, target, _ := strings.Cut(words[0], ":")
	s = Sink{Type: SinkType(kind), Target: target}
	switch s.Type {
	case File:
		s.Batch, s.SizeLimit, s.Former = 10000, 100<<20, 5
		err = checkFile(&s)
	case Webhook:
		s.Batch, s.Timeout = 100, 30*time.Second
		err = checkURL(&s)
	case Kafka:
		s.Batch = 1000
		err = checkTopic(&s)
	default:
		err = errors.New("expected file:path, webhook:URL or kafka:host:port/topic")
	}
	for i := 1; err == nil && i < len(words); i++ {
		err = s.set(words[i])
	}
	if err == nil && s.Type == Kafka && !s.TLS && (s.CAFile != "" || s.SASLFile != "" && !allLoopback(s.Brokers)) {
		err = errors.New("tls_CAfile and sasl_file need tls=yes, since passwords would be sent in clear text")
	}
	if err != nil {
		return s, fmt.Errorf("%q: %w", item, err)
	}
	s.Name = cmp.Or(s.Name, string(s.Type))
	slices.Sort(s.Kinds)
	return s, nil
}

// checkFile checks the target of a file.
func checkFile(s *Sink) error {
	if !filepath.IsAbs(s.Target) || filepath.Clean(s.Target) != s.Target || s.Target == "/" {
		return errors.New("expected an absolute path")
	}
	return nil
}

// checkURL checks that of a webhook. Addresses of people are not sent in clear text.
func checkURL(s *Sink) error {
	u, err := url.Parse(s.Target)
	switch {
	case err != nil || u.Host == "" || u.Fragment != "":
		return errors.New("expected a URL")
	case u.User != nil:
		return errors.New("a URL in main.cf must have no password: use secret_file")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("expected https:, since events would be sent in clear text")
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("expected https")
	}
	return nil
}

// isLoopback says whether a host is this machine by its very name.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// allLoopback says it of all addresses, which have ports.
func allLoopback(addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(a string) bool {
		host, _, _ := net.SplitHostPort(a)
		return !isLoopback(host)
	})
}

// checkTopic checks host:port/topic.
func checkTopic(s *Sink) error {
	broker, topic, ok := strings.Cut(s.Target, "/")
	if _, _, err := net.SplitHostPort(broker); !ok || err != nil {
		return errors.New("expected kafka:host:port/topic")
	}
	if topic == "" || len(topic) > 249 || strings.Trim(topic, letters+".") != "" || topic == "." || topic == ".." {
		return fmt.Errorf("%q is no name of a topic", topic)
	}
	s.Target, s.Brokers = topic, []string{broker}
	return nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// set applies one setting.
func (s *Sink) set(word string) (err error) {
	key, value, ok := strings.Cut(word, "=")
	if !ok || value == "" {
		return fmt.Errorf("%q: expected name=value", word)
	}
	of := func(types ...SinkType) error {
		if !slices.Contains(types, s.Type) {
			return fmt.Errorf("this is no setting of %s", s.Type)
		}
		return nil
	}
	switch key {
	case "name":
		if s.Name = value; len(value) > 40 || strings.Trim(value, letters) != "" {
			err = errors.New("expected at most 40 letters, digits, hyphens and underscores")
		}
	case "events":
		err = s.setKinds(value)
	case "batch":
		s.Batch, err = parseCount(value, 1, 10000)
	case "size_limit":
		s.SizeLimit, err = parseOctets(value)
		err = errors.Join(of(File), err)
	case "keep":
		s.Former, err = parseCount(value, 0, 1000)
		err = errors.Join(of(File), err)
	case "secret_file":
		s.SecretFile, err = value, errors.Join(of(Webhook), absolute(value))
	case "format":
		if s.Lines = value == "ndjson"; !s.Lines && value != "json" {
			err = errors.New("expected json or ndjson")
		}
		err = errors.Join(of(Webhook), err)
	case "timeout":
		var n int
		n, err = parseCount(strings.TrimSuffix(value, "s"), 1, 600)
		s.Timeout, err = time.Duration(n)*time.Second, errors.Join(of(Webhook), err)
	case "broker":
		_, _, err = net.SplitHostPort(value)
		s.Brokers, err = append(s.Brokers, value), errors.Join(of(Kafka), err)
	case "sasl_file":
		s.SASLFile, err = value, errors.Join(of(Kafka), absolute(value))
	case "tls":
		if s.TLS = value == "yes"; !s.TLS && value != "no" {
			err = errors.New("expected yes or no")
		}
		err = errors.Join(of(Kafka), err)
	case "tls_CAfile":
		s.CAFile, err = value, errors.Join(of(Webhook, Kafka), absolute(value))
	default:
		err = errors.New("unknown setting")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// setKinds takes kinds, with + between them.
func (s *Sink) setKinds(value string) error {
	for name := range strings.SplitSeq(value, "+") {
		if !slices.Contains(Kinds(), Kind(name)) {
			return fmt.Errorf("%q is no kind of event", name)
		}
		s.Kinds = append(s.Kinds, Kind(name))
	}
	return nil
}

func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("expected an absolute path")
	}
	return nil
}

func parseCount(text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("expected a number from %d to %d", low, high)
	}
	return n, nil
}

// parseOctets reads a number of octets, with k, m or g behind it for 1024 of them, and so on.
func parseOctets(text string) (int64, error) {
	shift := map[byte]int{'k': 10, 'm': 20, 'g': 30}[text[len(text)-1]|0x20]
	digits := text
	if shift > 0 {
		digits = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n<<shift < 1<<16 {
		return 0, errors.New("expected a size of at least 64k")
	}
	return n << shift, nil
}

// String names the sink's target for people.
func (s *Sink) String() string {
	if s.Type == Kafka {
		return fmt.Sprintf("kafka:%s/%s", s.Brokers[0], s.Target)
	}
	return string(s.Type) + ":" + s.Target
}
