// How long a TLS session may be resumed.

package smtpd

import (
	"crypto/tls"
	"encoding/binary"
	"time"
)

// limitTickets has TLS sessions resumed for no longer than life after their ticket
// was issued (smtpd_tls_session_cache_timeout): crypto/tls by itself would accept a
// ticket for a week. The time is written into the ticket, which is encrypted and
// which only we can read. A session that is resumed may get a new ticket, with the
// time of its own issue. With a life of 0 there are no tickets.
func limitTickets(cfg *tls.Config, life time.Duration, now func() time.Time) {
	if life <= 0 {
		cfg.SessionTicketsDisabled = true
		return
	}
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
