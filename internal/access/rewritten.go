// Addresses that this system has made of senders (SRS, package srs): mail to one belongs to
// the sender that is in it. They exist although no table has them, and only if we made them.

// Return paths (package returnpath) are such addresses too.

package access

import (
	"time"

	"posthaste/internal/dsn"
)

// rewritten judges an address of srs_domain in the form of SRS. ours says that it is one. Then
// either mail to it is taken, or it is refused as an unknown user: an address that we did not
// make, or that is too old, would let strangers relay through us.
func (r *run) rewritten(addr string, cl class) (ours bool, v verdict) {
	if p := r.e.paths; p != nil && cl == classRcpt && p.Ours(addr) {
		if _, err := p.Parse(addr, time.Now()); err != nil {
			return true, r.refuseFor(addr, cl, 550, dsn.S(5, 1, 1), "User unknown: "+err.Error())
		}
		return true, dunno
	}
	if !r.e.srs.Ours(addr) {
		return false, dunno
	}
	if _, err := r.e.srs.Reverse(addr, time.Now()); err != nil {
		return true, r.refuseFor(addr, cl, r.e.cfg.Int("unknown_virtual_alias_reject_code"), statusUserUnknown[cl], "User unknown: "+err.Error())
	}
	return true, dunno
}
