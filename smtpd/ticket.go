package smtpd

import (
	"crypto/tls"
	"encoding/binary"
	"time"
)

// limitTickets has sessions resumed for no longer than life after they began:
// crypto/tls by itself would take a ticket for a week. The time is written
// into the ticket, which only we can read.
func limitTickets(cfg *tls.Config, life time.Duration, now func() time.Time) {
	cfg.WrapSession = func(cs tls.ConnectionState, state *tls.SessionState) ([]byte, error) {
		state.Extra = append(state.Extra, binary.BigEndian.AppendUint64(nil, uint64(now().Unix())))
		return cfg.EncryptTicket(cs, state)
	}
	cfg.UnwrapSession = func(identity []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		state, err := cfg.DecryptTicket(identity, cs)
		if err != nil || state == nil || len(state.Extra) == 0 || len(state.Extra[0]) != 8 {
			return nil, err
		}
		begun := time.Unix(int64(binary.BigEndian.Uint64(state.Extra[0])), 0)
		if age := now().Sub(begun); age < 0 || age >= life {
			return nil, nil // a full handshake
		}
		return state, nil
	}
}
