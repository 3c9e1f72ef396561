// What mail goes from. A pool of sources is chosen by the name in the envelope, by the sender,
// or for all mail that leaves this host; each source of it is looked up, with the limits that
// hold for it at the destination.
//
// What is not known for sure is not guessed: mail from the wrong address harms those who
// own it. So an unknown pool or source, or one that has errors, defers the mail, and
// the log says which.

package trivialrewrite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/egress"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// noPool is what tables and parameters say for mail that goes as if there were no pools.
const noPool = "none"

// egressPools finds the pool of a recipient's mail. It is not changed after newEgress.
type egressPools struct {
	sources  *table.Maps      // egress_source_maps
	pools    *table.Maps      // egress_pool_maps
	bySender *table.Maps      // sender_dependent_egress_pool_maps
	standard string           // default_egress_pool; "": none
	now      func() time.Time // the clock, or that of a test
}

// newEgress reads the parameters. It returns nil when there are no pools: then nothing of
// this costs anything, and a message whose envelope names one is deferred.
func newEgress(cfg *config.Config, maps func(name string) *table.Maps) (*egressPools, error) {
	e := &egressPools{sources: maps("egress_source_maps"), pools: maps("egress_pool_maps"),
		bySender: maps("sender_dependent_egress_pool_maps"), standard: cfg.String("default_egress_pool"),
		now: time.Now}
	if e.standard == noPool {
		e.standard = ""
	}
	// One of them is enough: a pool that is named and not there must be complained of.
	if e.sources.Empty() && e.pools.Empty() && e.bySender.Empty() && e.standard == "" {
		return nil, nil
	}
	if e.standard != "" && !egress.ValidName(e.standard) {
		return e, fmt.Errorf("default_egress_pool: %.100q is no name of a pool", e.standard)
	}
	return e, nil
}

// dependsOnSender says whether answers are for one sender only.
func (e *egressPools) dependsOnSender() bool { return e != nil && !e.bySender.Empty() }

// errEgress is what is wrong with a pool or a source: a mistake of whoever wrote the tables.
// The mail is deferred with its text.
type errEgress struct{ text string }

func (e errEgress) Error() string { return e.text }

// egress finds the pool of a recipient's mail, whose limits have been found, and puts it into
// res. named is the pool that the envelope names. What is wrong with the tables makes
// res one for the retry transport. An error is a table that could not be read.
func (r *Rewriter) egress(ctx context.Context, sender, named string, res *Result) error {
	e := r.egressPools
	if e == nil && named == "" || res.Flags&offHost == 0 || res.Flags&proto.ResolveError != 0 ||
		res.Transport == transportError || res.Transport == transportRetry {
		return nil // it does not leave this host, or not at all
	}
	err := r.findPool(ctx, sender, named, res)
	if wrong, ok := errors.AsType[errEgress](err); ok {
		if e != nil { // then there are sites
			r.sites.complain(wrong.text)
		}
		res.Transport, res.share = transportRetry, sharing{}
		res.Nexthop = mail.Nexthop("4.3.5 mail system configuration error: " + wrong.text)
		return nil
	}
	return err
}

func (r *Rewriter) findPool(ctx context.Context, sender, named string, res *Result) error {
	e := r.egressPools
	// The message was queued when there were pools, or a table names one and nobody made it.
	if e == nil {
		return errEgress{fmt.Sprintf("egress pool %.100q: egress_pool_maps is empty", named)}
	}
	// What a table has said of this very message comes first, then its sender, then main.cf.
	pool := named
	if pool == "" {
		value, found, err := r.lookupSender(ctx, e.bySender, sender, r.emptyTransportKey)
		if err != nil {
			return err
		}
		if pool = e.standard; found {
			pool = value
		}
	}
	// smtp_bind_address and smtp_helo_name then say what it goes from, as without pools.
	if pool == "" || pool == noPool {
		return nil
	}
	if !egress.ValidName(pool) {
		return errEgress{fmt.Sprintf("%.100q is no name of an egress pool", pool)}
	}
	// Names have no parts: the key is the whole name, as it is spelt.
	text, found, err := e.pools.Lookup(ctx, pool, false)
	if err != nil {
		return err
	}
	if !found {
		return errEgress{fmt.Sprintf("egress pool %q is not in egress_pool_maps", pool)}
	}
	list, err := egress.ParsePool(text)
	if err != nil {
		return errEgress{fmt.Sprintf("egress_pool_maps: %s: %v", pool, err)}
	}
	// All members are looked up, whatever is drawn later: an error in one is found with the
	// first message, and not with the one that would have gone from there.
	var members []proto.PoolMember
	for _, of := range list {
		m, ok, err := r.member(ctx, of, res)
		if err != nil {
			return err
		}
		if ok {
			members = append(members, m)
		}
	}
	if len(members) == 0 {
		return errEgress{fmt.Sprintf("egress pool %q: the warm-up of its sources has not begun yet", pool)}
	}
	res.pool, res.members = pool, proto.AppendMembers(nil, members)
	return nil
}

// member looks one source of a pool up, with its limits where the mail goes. ok is false for
// one whose warm-up has not begun.
func (r *Rewriter) member(ctx context.Context, of egress.Member, res *Result) (m proto.PoolMember, ok bool, err error) {
	e := r.egressPools
	text, found, err := e.sources.Lookup(ctx, of.Source, false)
	if err != nil {
		return m, false, err
	}
	if !found {
		return m, false, errEgress{fmt.Sprintf("egress source %q is not in egress_source_maps", of.Source)}
	}
	src, err := egress.Parse(of.Source, text)
	if err != nil {
		return m, false, errEgress{fmt.Sprintf("egress_source_maps: %s: %v", of.Source, err)}
	}
	// The number is that of the day on which the answer is given. Mail that waits at midnight
	// is asked about again within a minute.
	day, n := src.Warmup.Today(e.now())
	// Its warm-up begins later. Others of the pool send what there is until then.
	if day == 0 {
		return m, false, nil
	}
	m = proto.PoolMember{Source: of.Source, Weight: of.Weight, Spec: src.String(), Warmup: n, Wait: src.Warmup.Wait}
	if n > 0 {
		m.Day = day
	}
	err = r.sites.sourceLimits(ctx, of.Source, res, &m)
	return m, err == nil, err
}

// sourceLimits looks up what is limited for a source at a destination: the keys are those of
// all mail, with " from " and its name behind. What holds for each destination (*) holds for
// one that has no entry of its own for this source, as it is with all mail.
func (s *sites) sourceLimits(ctx context.Context, source string, res *Result, m *proto.PoolMember) (err error) {
	x := &res.share
	star := false
	defer func() {
		if err == nil && x.unit != "" {
			s.shapeSource(x, m, star)
		}
	}()
	if s.limits.Empty() || x.hop == "" {
		return nil
	}
	from := " from " + source
	if m.OwnLimits, err = s.limit(ctx, x.hop+from); err != nil {
		return err
	}
	// The same order as in findLimits: what is found nearer to the domain keeps out *.
	whole := &m.OwnLimits
	if x.site != "" {
		if m.SiteLimits, err = s.limit(ctx, "site:"+x.site+from); err != nil {
			return err
		}
		whole = &m.SiteLimits
	}
	if *whole == "" && m.OwnLimits == "" {
		if *whole, err = s.limit(ctx, "*"+from); err != nil {
			return err
		}
		star = *whole != ""
	}
	if x.provider != "" {
		m.ProviderLimits, err = s.limit(ctx, "provider:"+x.provider+from)
	}
	return err
}
