// Servers by SRV records, for submission to a provider's service (use_srv_lookup).

package smtp

import (
	"context"
	"slices"
	"strconv"

	"posthaste/internal/dsn"
	"posthaste/internal/resolver"
)

// wantsSRV says whether the present nexthop's servers are found by SRV
// records: it is domain:service, and use_srv_lookup lists the service.
func (d *delivery) wantsSRV() bool {
	return !d.hop.noMX && d.hop.service != "" && slices.Contains(d.set.srv, d.hop.service)
}

// srvTargets finds the servers of a service of a domain, RFC 2782. done is
// false when MX and address records are to be looked at instead.
func (d *delivery) srvTargets(ctx context.Context) (list []target, f *failure, done bool) {
	domain, _ := d.hop.domain(d.set.names)
	a, err := d.a.dns.SRV(ctx, "_"+d.hop.service+"._tcp."+domain)
	if err != nil {
		if resolver.NotFound(err) {
			if d.set.srvFallback {
				return nil, nil, false
			}
			return nil, lookupFailure(dsn.S(5, 4, 4), err.Error()), true
		}
		if d.set.srvIgnoreErr {
			return nil, nil, false
		}
		return nil, lookupError(err), true
	}
	// RFC 2782: a target of "." says that the service is decidedly not available at
	// this domain.
	if len(a.Records) == 1 && a.Records[0].Target == "" {
		return nil, lookupFailure(dsn.S(5, 1, 0), "The service "+d.hop.service+" is unavailable at "+d.hop.host), true
	}
	hosts := d.orderSRV(a.Records)
	var why *failure
	for i, h := range hosts {
		// Order within a priority is by weight: it must not be shuffled again.
		found, f := d.hostTargets(ctx, nil, h.Target, uint16(i))
		if f != nil && (why == nil || f.soft()) {
			why = f
		}
		for j := range found {
			found[j].port = strconv.Itoa(int(h.Port))
			found[j].mxSafe = a.Secure
		}
		list = append(list, found...)
	}
	if len(list) == 0 {
		return nil, why, true
	}
	return list, nil, true
}

// orderSRV puts records in the order in which they are tried: by priority, among
// equals at random, where weight is chance (RFC 2782, "Weight"). At most maxTargets
// of them count.
func (d *delivery) orderSRV(records []resolver.SRV) []resolver.SRV {
	left := slices.Clone(records[:min(len(records), maxTargets)])
	slices.SortStableFunc(left, func(a, b resolver.SRV) int { return int(a.Priority) - int(b.Priority) })
	out := make([]resolver.SRV, 0, len(left))
	for len(left) > 0 {
		// n records have the priority that is next, and sum is their weight.
		n, sum := 0, 0
		for n < len(left) && left[n].Priority == left[0].Priority {
			sum += int(left[n].Weight)
			n++
		}
		i := 0
		if sum > 0 {
			d.a.mu.Lock()
			// The record is the one at which the running sum of weights reaches
			// this number.
			at := d.a.rnd.IntN(sum + 1)
			d.a.mu.Unlock()
			for at -= int(left[0].Weight); at > 0 && i+1 < n; at -= int(left[i].Weight) {
				i++
			}
		}
		out = append(out, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return out
}
