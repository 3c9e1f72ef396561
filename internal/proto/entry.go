package proto

import (
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/spool"
)

func appendEntry(b []byte, tag byte, e *spool.Entry) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.String(b, 'q', e.ID)
		b = e.Ref.Append(b, 'r')
		b = pack.Uint(b, 'Q', e.Queue)
		b = mail.AppendTime(b, 'n', e.NextAttempt)
		b = pack.Int(b, 'a', e.Attempts)
		b = pack.Int(b, 's', e.Size)
		b = pack.Int(b, 'N', e.NRcpt)
		b = pack.Int(b, 'p', e.NPending)
		b = pack.Bool(b, '0', e.Null)
		b = pack.Uint(b, 't', e.Trace)
		b = pack.Bool(b, 'w', e.Warned)
		b = pack.Bool(b, 'e', e.Expire)
		return pack.String(b, 'd', e.Done)
	})
}

func decodeEntry(field []byte, e *spool.Entry) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			e.ID = mail.QueueID(r.String())
		case 'r':
			if err := e.Ref.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'Q':
			e.Queue = spool.Queue(r.Uint())
		case 'n':
			e.NextAttempt = mail.ReadTime(&r)
		case 'a':
			e.Attempts = int(r.Int())
		case 's':
			e.Size = r.Int()
		case 'N':
			e.NRcpt = int(r.Int())
		case 'p':
			e.NPending = int(r.Int())
		case '0':
			e.Null = r.Bool()
		case 't':
			e.Trace = mail.Trace(r.Uint())
		case 'w':
			e.Warned = r.Bool()
		case 'e':
			e.Expire = r.Bool()
		case 'd':
			e.Done = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}
