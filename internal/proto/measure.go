package proto

import (
	"math"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Kinds of messages between the services and the one that publishes what
// they count.
const (
	KindPresent       = 90
	KindMeasure       = 91
	KindMeasures      = 92
	KindMeasuresReply = 93
	KindGather        = 164
	KindGatherReply   = 165
)

// Present is the first that a process says to the metrics service: who it is.
type Present struct {
	Service string // first column of master.cf
	Process string // smtpd
	PID     int
}

func (*Present) Kind() uint16 { return KindPresent }
func (m *Present) Append(b []byte) []byte {
	b = pack.String(b, 's', m.Service)
	b = pack.String(b, 'p', m.Process)
	return pack.Int(b, 'i', m.PID)
}
func (m *Present) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 's':
			m.Service = r.String()
		case 'p':
			m.Process = r.String()
		case 'i':
			m.PID = int(r.Int())
		}
	}
	return r.Err()
}

// Measure asks a process what it has counted. The answer is Measures.
type Measure struct{ empty }

func (*Measure) Kind() uint16 { return KindMeasure }

// Measures is what a process has counted since it was last asked, and the
// present values of what goes up and down. A process that ends sends its last
// unasked, and gets a MeasuresReply.
type Measures struct{ Samples []Sample }

// A Sample is one value.
type Sample struct {
	Name   string   // of the family, as in package metrics
	Labels []string // values, in the order of the family's label names
	Value  float64  // of a histogram: the sum
	Counts []uint64 // of a histogram: observations by bucket, the last one above all bounds
}

func (*Measures) Kind() uint16 { return KindMeasures }
func (m *Measures) Append(b []byte) []byte {
	for i := range m.Samples {
		b = pack.Nested(b, 's', m.Samples[i].append)
	}
	return b
}

func (s *Sample) append(b []byte) []byte {
	b = pack.String(b, 'n', s.Name)
	for _, l := range s.Labels {
		b = pack.Bytes(b, 'l', l)
	}
	b = pack.Uint(b, 'v', math.Float64bits(s.Value))
	for _, c := range s.Counts {
		b = pack.Uint(b, 'c', c+1)
	}
	return b
}

func (m *Measures) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 's' {
			s, err := decodeSample(r.Bytes())
			if err != nil {
				return err
			}
			m.Samples = append(m.Samples, s)
		}
	}
	return r.Err()
}

func decodeSample(b []byte) (s Sample, err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			s.Name = r.String()
		case 'l':
			s.Labels = append(s.Labels, r.String())
		case 'v':
			s.Value = math.Float64frombits(r.Uint())
		case 'c':
			s.Counts = append(s.Counts, r.Uint()-1)
		}
	}
	return s, r.Err()
}

// MeasuresReply says that a process's last Measures have been added.
type MeasuresReply struct{ empty }

func (*MeasuresReply) Kind() uint16 { return KindMeasuresReply }

// Gather asks the metrics service, or the queue manager for that of its node, for all that it would publish now.
type Gather struct{ empty }

func (*Gather) Kind() uint16 { return KindGather }

// GatherReply is all series, as they are published. In Labels the service is the first where the family has one.
type GatherReply struct {
	Began  time.Time // since when it is counted
	Series []Sample
}

func (*GatherReply) Kind() uint16 { return KindGatherReply }
func (m *GatherReply) Append(b []byte) []byte {
	b = mail.AppendTime(b, 'b', m.Began)
	for i := range m.Series {
		b = pack.Nested(b, 's', m.Series[i].append)
	}
	return b
}
func (m *GatherReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'b':
			m.Began = mail.ReadTime(&r)
		case 's':
			s, err := decodeSample(r.Bytes())
			if err != nil {
				return err
			}
			m.Series = append(m.Series, s)
		}
	}
	return r.Err()
}
