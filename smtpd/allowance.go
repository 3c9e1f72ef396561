// How many recipients a client that has logged in may send to:
// account_recipient_limit, which the sendlimit service counts.

package smtpd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
	"posthaste/internal/smtpwire"
)

// A spender counts what accounts send. It may be called concurrently.
type spender interface {
	// Spend counts recipients of an account, or says that it has had too many. An error
	// says that nobody knows.
	Spend(ctx context.Context, q *proto.Spend) (proto.SpendReply, error)
}

// accountLimit counts one recipient of the client's account, and refuses it if it is
// one too many. It comes after the restrictions, so that recipients that these refuse
// do not count. That a limit is exceeded passes by itself, and the
// reply is temporary; that an account is locked does not.
func (s *session) accountLimit(ctx context.Context) *smtpwire.Reply {
	if s.srv.spender == nil || s.a.SASL.Username == "" {
		return nil
	}
	account := s.a.SASL.Username
	reply, err := s.srv.spender.Spend(ctx, &proto.Spend{Account: strings.ToLower(account), Count: 1, Client: s.a.NameAddr()})
	var r *smtpwire.Reply
	switch {
	case err != nil:
		s.srv.log.Warning("the sending limit of account %s is not known: %v", account, err)
		// What is not counted may be the mail of a thief.
		r = smtpwire.R(451, dsn.S(4, 3, 0), "Error: sending limits cannot be checked, try again later")
	case reply.Locked:
		r = smtpwire.R(550, dsn.S(5, 7, 1), "Error: account "+account+" is locked because it has sent to too many recipients; ask the postmaster")
	case reply.Refused:
		r = smtpwire.R(450, dsn.S(4, 7, 1), fmt.Sprintf("Error: account %s has reached its limit of %s recipients; try again at %s",
			account, reply.Limit, time.Unix(reply.Until, 0).UTC().Format("2006-01-02 15:04 UTC")))
	default:
		return nil
	}
	s.srv.access.LogAction(&s.a, "reject", r.String())
	return s.asPolicy(r)
}
