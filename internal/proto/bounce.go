package proto

import (
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/spool"
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

// Notify asks the bounce service to tell the sender of a message, and whom
// else the configuration names, what came of these recipients. The reply
// comes when the notice is on stable storage; the disposition of what it
// reports is recorded with it (Settle). NoticeReply.Sent is false when there
// was nobody to tell: the recipients are settled all the same.
type Notify struct {
	Notice   NoticeKind
	ID       mail.QueueID
	Ref      spool.Ref
	Outcomes []mail.Outcome
}

func (*Notify) Kind() uint16 { return KindNotify }
func (m *Notify) Append(b []byte) []byte {
	b = pack.Uint(b, 'k', m.Notice)
	b = pack.String(b, 'q', m.ID)
	b = m.Ref.Append(b, 'r')
	for i := range m.Outcomes {
		b = m.Outcomes[i].Append(b, 'o')
	}
	return b
}
func (m *Notify) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'k':
			m.Notice = NoticeKind(r.Uint())
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'r':
			if err := m.Ref.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'o':
			var o mail.Outcome
			if err := o.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Outcomes = append(m.Outcomes, o)
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
