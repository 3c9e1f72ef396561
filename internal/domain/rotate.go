package domain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/table"
	"posthaste/internal/tabletext"
)

// A turn is one look at the keys of a domain.
type turn struct {
	*plan
	world *World
	site  *Site
	vault *vault
	ring  *ring
	now   time.Time

	table   tabletext.File
	value   string          // what the table says of the domain
	entries []dkimkey.Entry // the same
	made    int             // so many keys of the ring were there before
	waits   []string        // what a pending key waits for
	publish []Record        // of keys that are pending
}

// rotate takes the keys of the domains one step further, as far as time and the DNS allow.
func (c *command) rotate(ctx context.Context, cfg *config.Config, site *Site, w *World) error {
	v, _, err := openVault(cfg, c.orders.dry)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	defer v.Close()
	if len(c.domains) == 0 {
		if c.domains, err = v.domains(); err != nil {
			return cli.Errorf(cli.ExitConfig, "%w", err)
		}
	}
	var errs []error
	for _, domain := range c.domains { // one that fails does not keep the others
		if err := c.rotateOne(ctx, cfg, site, w, v, domain); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", domain, err))
		}
	}
	if len(errs) > 0 {
		return cli.Errorf(cli.ExitConfig, "%w", errors.Join(errs...))
	}
	return nil
}

// rotateOne takes those of one domain.
func (c *command) rotateOne(ctx context.Context, cfg *config.Config, site *Site, w *World, v *vault, domain string) error {
	r, err := v.ring(domain)
	if err != nil {
		return err
	}
	t := &turn{plan: &plan{cfg: cfg}, world: w, site: site, vault: v, ring: r, now: c.Now}
	if err := t.read(ctx); err != nil {
		return err
	}
	before := r.String()
	old := slices.Clone(r.keys)
	t.reconcile()
	t.retire(cfg.Duration("dkim_key_retire_time"))
	t.made = len(r.keys)
	if err := t.renew(c.orders.new, cfg.Duration("dkim_key_lifetime")); err != nil {
		return err
	}
	if err := t.activate(ctx); err != nil {
		return err
	}
	if r.String() != before {
		t.writeRing(v, r, slices.DeleteFunc(slices.Clone(r.keys), func(k RingKey) bool { return slices.Contains(old, k) }))
	}
	t.forget(old)
	return c.report(t)
}

// read finds the table that has the domain's entry, or that is to have it.
func (t *turn) read(ctx context.Context) error {
	domain := t.ring.domain
	var ok bool
	if t.table, ok = tabletext.Editable(t.cfg.List("dkim_sign_maps")); !ok {
		return errors.New("dkim_sign_maps has no table that can be edited: see posthaste domain add")
	}
	found := false
	var err error
	if t.value, found, err = t.table.Get(domain); err != nil {
		return err
	}
	signs, err := t.site.Keys(ctx, domain)
	if err != nil && !t.table.Stale() {
		return err
	}
	for _, e := range signs {
		if !found && e.Domain == domain {
			return fmt.Errorf("another table than %s has selector %s: change the keys there", t.table.Path, e.Selector)
		}
	}
	t.entries, err = dkimkey.ParseEntries(t.value, domain)
	return err
}

// reconcile has the ring say what the table says: mail is signed by the table. They differ after
// a run was interrupted between the two, and where an administrator has made the entry.
func (t *turn) reconcile() {
	for _, e := range t.entries {
		if e.Domain != t.ring.domain || !validSelector(e.Selector) {
			continue
		}
		k := t.ring.find(e.Selector)
		if k == nil {
			if kind, since, err := fileKind(e.File); err == nil {
				t.ring.add(e.Selector, kind, Active, since)
			}
		} else if k.State != Active {
			k.State, k.Since = Active, t.now.UTC().Truncate(time.Second)
		}
	}
	for i := range t.ring.keys {
		k := &t.ring.keys[i]
		signs := slices.ContainsFunc(t.entries, func(e dkimkey.Entry) bool {
			return e.Domain == t.ring.domain && strings.EqualFold(e.Selector, k.Selector)
		})
		if k.State == Active && !signs {
			k.State, k.Since = Retiring, t.now.UTC().Truncate(time.Second)
		}
	}
}

// fileKind is the kind of a key that somebody else made, and when.
func fileKind(path string) (kind string, since time.Time, err error) {
	key, err := dkimkey.Read(path)
	if err != nil {
		return "", since, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", since, err
	}
	return kindOf(key), info.ModTime(), nil
}

// retire ends the time of keys whose last mail has arrived or come back.
func (t *turn) retire(after time.Duration) {
	for i := range t.ring.keys {
		if k := &t.ring.keys[i]; k.State == Retiring && t.now.Sub(k.Since) >= after {
			k.State, k.Since = Retired, t.now.UTC().Truncate(time.Second)
		}
	}
}

// renew makes a key for each kind that signs and has reached its age, or for all of them if it is
// asked for, unless the next one is waiting already.
func (t *turn) renew(asked bool, lifetime time.Duration) error {
	waiting := func(kind string) bool {
		return slices.ContainsFunc(t.ring.in(Pending), func(k RingKey) bool { return k.Kind == kind })
	}
	for _, k := range t.ring.in(Active) {
		old := lifetime > 0 && t.now.Sub(k.Since) >= lifetime
		if !old && !asked || waiting(k.Kind) {
			continue
		}
		if err := newKey(t.plan, t.vault, t.ring, k.Kind, t.now); err != nil {
			return err
		}
	}
	return nil
}

// activate has mail signed with the pending keys whose records are visible, and lets the keys retire
// whose place they take.
func (t *turn) activate(ctx context.Context) error {
	words := table.SplitList(t.value)
	changed := false
	for i := range t.ring.keys {
		k := &t.ring.keys[i]
		if k.State != Pending {
			continue
		}
		record, err := t.vault.record(t.ring.domain, *k)
		if i >= t.made && errors.Is(err, fs.ErrNotExist) { // it is made in this run: nobody can have published it
			t.waits = append(t.waits, k.Selector+" waits: its record is to be published")
			continue
		}
		if err != nil {
			return err
		}
		if err := t.world.visible(ctx, record); err != nil {
			t.publish = append(t.publish, record)
			t.waits = append(t.waits, fmt.Sprintf("%s waits: %v", k.Selector, err))
			continue
		}
		words = t.replace(words, k)
		changed = true
	}
	if !changed {
		return nil
	}
	return t.entry(t.table, t.ring.domain, strings.Join(words, ", "))
}

// replace has a key sign in the place of the other ones of its kind.
func (t *turn) replace(words []string, next *RingKey) []string {
	now := t.now.UTC().Truncate(time.Second)
	for i := range t.ring.keys {
		k := &t.ring.keys[i]
		if k.State != Active || k.Kind != next.Kind {
			continue
		}
		k.State, k.Since = Retiring, now
		words = slices.DeleteFunc(words, func(w string) bool {
			list, err := dkimkey.ParseEntries(w, t.ring.domain)
			return err == nil && len(list) == 1 && list[0].Domain == t.ring.domain && strings.EqualFold(list[0].Selector, k.Selector)
		})
	}
	next.State, next.Since = Active, now
	return append(words, next.Selector+":"+t.vault.path(keyFile(t.ring.domain, next.Selector)))
}

// forget removes the private keys that have retired: nothing is signed with them again.
func (t *turn) forget(before []RingKey) {
	for _, k := range t.ring.in(Retired) {
		if slices.Contains(before, k) {
			continue
		}
		name := keyFile(t.ring.domain, k.Selector)
		if _, err := t.vault.read(name, maxRing); err == nil {
			t.add(func() error { return t.vault.remove(name) }, "%s: removed; the record of %s may be removed as well", t.vault.path(name), k.Selector)
		}
	}
}

// A rotation is what JSON says of domain rotate.
type rotation struct {
	Domain  string   `json:"domain"`
	Changed []string `json:"changed"`
	Waits   []string `json:"waits"`
	Publish []Record `json:"publish"`
}

// report carries the plan out, and prints what was changed and what is to be done.
func (c *command) report(t *turn) error {
	t.finish()
	out := rotation{Domain: t.ring.domain, Changed: []string{}, Waits: append([]string{}, t.waits...), Publish: []Record{}}
	err := t.carryOut(c.orders.dry, func(what string) error { out.Changed = append(out.Changed, what); return nil })
	if err != nil {
		return fmt.Errorf("%w; repeat the command to do what is left", err)
	}
	out.Publish = append(out.Publish, t.publish...)
	for _, k := range t.ring.in(Pending) { // those of keys that were made now
		if record, err := t.vault.record(t.ring.domain, k); err == nil && !slices.ContainsFunc(out.Publish, func(r Record) bool { return r.Name == record.Name }) {
			out.Publish = append(out.Publish, record)
		}
	}
	if c.json {
		return json.NewEncoder(c.Stdout).Encode(out)
	}
	return c.tellRotation(&out)
}

// tellRotation is for a person.
func (c *command) tellRotation(out *rotation) error {
	if len(out.Changed) == 0 && len(out.Waits) == 0 {
		if !c.quiet {
			fmt.Fprintf(c.Stdout, "%s: nothing to do\n", out.Domain)
		}
		return nil
	}
	would := ""
	if c.orders.dry {
		would = "would change: "
	}
	for _, what := range out.Changed {
		fmt.Fprintf(c.Stdout, "%s: %s%s\n", out.Domain, would, what)
	}
	for _, what := range out.Waits {
		fmt.Fprintf(c.Stdout, "%s: %s\n", out.Domain, what)
	}
	for _, r := range out.Publish {
		fmt.Fprintf(c.Stdout, "publish: %s\n", r)
	}
	return nil
}
