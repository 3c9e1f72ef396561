package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// NoticeKind is what a notice tells its reader.
type NoticeKind uint8

const (
	NoticeFailure NoticeKind = iota + 1 // these recipients will not get the message
	NoticeDelay                         // these recipients have not got it yet
	NoticeSuccess                       // these recipients have got it (NOTIFY=SUCCESS)
	NoticeTrace                         // report of sendmail -v and -bv
	NoticeExpired                       // NoticeFailure because it waited too long: status codes stay 4.x.x
)

// NotifyTimeout bounds the making of one notice, with the wait for those before
// it: then the bounce service gives up, and may be asked again.
const NotifyTimeout = 5 * time.Minute

// Notify asks the bounce service to tell the sender of a message, and whom
// else the configuration names, what came of these recipients. The reply
// comes when the notice is on stable storage; the disposition of what it
// reports is recorded with it (Settle). NoticeReply.Sent is false when there
// was nobody to tell: the recipients are settled all the same. A failure that is
// told of a recipient whose outcome says Deferred is that of some of its parts:
// it stays pending, and they have been told.
type Notify struct {
	Notice   NoticeKind
	ID       mail.QueueID
	Outcomes []mail.Outcome
	// Continued says that a former notice of the same has told of others: for
	// the kind NoticeDelay, after which the message counts as warned.
	Continued bool
}

func (*Notify) Kind() uint16 { return KindNotify }

// The tag r was where the message lay.
func (m *Notify) Append(b []byte) []byte {
	b = pack.Uint(b, 'k', m.Notice)
	b = pack.String(b, 'q', m.ID)
	for i := range m.Outcomes {
		b = m.Outcomes[i].Append(b, 'o')
	}
	return pack.Bool(b, 'c', m.Continued)
}
func (m *Notify) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'k':
			m.Notice = NoticeKind(r.Uint())
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'o':
			var o mail.Outcome
			if err := o.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Outcomes = append(m.Outcomes, o)
		case 'c':
			m.Continued = r.Bool()
		}
	}
	return r.Err()
}

// NotifyReply ends a Notify. An error is sent as ipc's error reply: the queue
// manager keeps the message and tries again.
type NotifyReply struct {
	Notice mail.QueueID // the notice's own queue ID; empty when none was sent
	// Settled says that the recipients' disposition was recorded with the
	// notice; else (no notice was needed) the queue manager records it.
	Settled bool
}

func (*NotifyReply) Kind() uint16 { return KindNotifyReply }
func (m *NotifyReply) Append(b []byte) []byte {
	return pack.Bool(pack.String(b, 'q', m.Notice), 's', m.Settled)
}
func (m *NotifyReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.Notice = mail.QueueID(r.String())
		case 's':
			m.Settled = r.Bool()
		}
	}
	return r.Err()
}
