package queue

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Field names what a Change sets.
type Field uint8

const (
	SetQueue Field = 1 << iota
	SetNextAttempt
	SetAttempts
	SetWarned // a "still trying" notice was sent
	SetExpire // an operator wants it returned now
)

// A Change is what becomes of a message that stays in the queue. It is recorded whole or not
// at all.
type Change struct {
	Set         Field // which of the five fields below count; the others keep their values
	Queue       Name
	NextAttempt time.Time // to the microsecond
	Attempts    int
	Warned      bool
	Expire      bool
	// Outcomes take the place of their recipients' former ones, by Outcome.Rcpt.
	Outcomes []mail.Outcome
	// Done are recipients, by their indexes in the envelope, for whom nothing more is to
	// be done. With the last of them the message leaves the queue.
	Done []int
}

// Changes says whether c does more than report recipients as done.
func (c *Change) Changes() bool { return c.Set != 0 || len(c.Outcomes) > 0 }

// AppendFields appends the fields of c. They may stand among others that have other tags than
// d s Q n a w e o.
func (c *Change) AppendFields(b []byte) []byte {
	for _, i := range c.Done {
		b = pack.Uint(b, 'd', uint64(i)+1)
	}
	b = pack.Uint(b, 's', c.Set)
	b = pack.Uint(b, 'Q', c.Queue)
	b = mail.AppendTime(b, 'n', c.NextAttempt)
	b = pack.Int(b, 'a', c.Attempts)
	b = pack.Bool(b, 'w', c.Warned)
	b = pack.Bool(b, 'e', c.Expire)
	for i := range c.Outcomes {
		b = c.Outcomes[i].Append(b, 'o')
	}
	return b
}

// DecodeFields reads what AppendFields wrote into c, which should be zero.
func (c *Change) DecodeFields(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		c.ReadField(&r)
	}
	return r.Err()
}

// ReadField reads the field that r stands at, if it is one of a Change. What is malformed is
// r's error.
func (c *Change) ReadField(r *pack.Reader) {
	switch r.Tag() {
	case 'd':
		c.Done = append(c.Done, int(r.Uint())-1)
	case 's':
		c.Set = Field(r.Uint())
	case 'Q':
		c.Queue = Name(r.Uint())
	case 'n':
		c.NextAttempt = mail.ReadTime(r)
	case 'a':
		c.Attempts = int(r.Int())
	case 'w':
		c.Warned = r.Bool()
	case 'e':
		c.Expire = r.Bool()
	case 'o':
		var o mail.Outcome
		if err := o.Decode(r.Bytes()); err != nil {
			r.Fail(err)
			return
		}
		c.Outcomes = append(c.Outcomes, o)
	}
}
