package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
	"posthaste/internal/smallfile"
)

// produceTime bounds how long one batch may take.
const produceTime = 30 * time.Second

// A topic produces records for a topic of Kafka.
type topic struct {
	opts   []kgo.Opt
	client *kgo.Client
}

// newTopic makes the producer. It connects when there is something to send.
func newTopic(s *event.Sink, version string) (*topic, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(s.Brokers...), kgo.DefaultProduceTopic(s.Target), kgo.ClientID("posthaste"),
		kgo.SoftwareNameAndVersion("posthaste", kafkaVersion(version)),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.RecordDeliveryTimeout(produceTime), kgo.ProduceRequestTimeout(produceTime)}
	if s.TLS {
		conf, err := tlsConfig(s.CAFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(conf))
	}
	if s.SASLFile != "" {
		text, err := smallfile.Read(s.SASLFile, maxSecret)
		if err != nil {
			return nil, fmt.Errorf("sasl_file: %w", err)
		}
		mechanism, err := saslMechanism(string(text))
		if err != nil {
			return nil, fmt.Errorf("sasl_file: %w", err)
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	return &topic{opts, client}, nil
}

// kafkaVersion is the version as Kafka takes it: letters, digits, hyphens and dots.
func kafkaVersion(v string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z' {
			return r
		}
		return '-'
	}, v), ".-")
}

// saslMechanism reads a mechanism, a user and a password, one on each line.
func saslMechanism(text string) (sasl.Mechanism, error) {
	lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
	if len(lines) != 3 {
		return nil, errors.New("expected three lines: mechanism, user, password")
	}
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	switch user, password := lines[1], lines[2]; strings.ToUpper(strings.TrimSpace(lines[0])) {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, errors.New("expected PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 on the first line")
}

// send implements carrier.
func (t *topic) send(ctx context.Context, list []eventjournal.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, produceTime)
	defer cancel()
	records := make([]*kgo.Record, len(list))
	for i := range list {
		e := &list[i]
		records[i] = &kgo.Record{Value: e.JSON, Headers: []kgo.RecordHeader{{Key: "kind", Value: []byte(e.Kind)}, {Key: "id", Value: identifier(e.JSON)}}}
		if e.Key != "" {
			records[i].Key = []byte(e.Key)
		}
	}
	err := t.produce(ctx, records)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord):
		return &refusal{err.Error()}
	case ctx.Err() != nil || errors.Is(err, kgo.ErrRecordTimeout):
		return fmt.Errorf("the brokers have not taken the events within %v: %w", produceTime, err)
	}
	return err
}

// produce produces records, and returns soon after ctx has ended. A client that is idempotent does not give
// up what a broker may have taken: it waits until one answers, however long that is. So it is closed then, which
// ends all that it has under way, and another takes its place. Records may be there twice.
func (t *topic) produce(ctx context.Context, records []*kgo.Record) error {
	client, closed := t.client, make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		close(closed)
	})
	err := client.ProduceSync(ctx, records...).FirstErr()
	if stop() {
		return err
	}
	<-closed
	fresh, again := kgo.NewClient(t.opts...)
	if again != nil { // the same options were good before
		return errors.Join(err, again)
	}
	t.client = fresh
	return err
}

// identifier is that of an event, which stands at the beginning of its JSON.
func identifier(b []byte) []byte {
	const before = `{"schema":1,"id":"`
	const length = 32
	if len(b) < len(before)+length {
		return nil
	}
	return b[len(before):][:length]
}

// close implements carrier.
func (t *topic) close() error {
	t.client.Close()
	return nil
}

// open makes the carrier of a sink. It reads the files that the sink names. say is told of what a disk has spoilt.
func open(s *event.Sink, version string, say func(format string, args ...any)) (carrier, error) {
	switch s.Type {
	case event.File:
		return newFile(s, say), nil
	case event.Webhook:
		return newWebhook(s, version)
	}
	return newTopic(s, version)
}
