package domain

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"posthaste/internal/mailauth/dkimkey"
)

// newKey plans a key of a kind, and puts it into the ring as pending. A key file that is in no ring
// was left by an interrupted run, and is taken: its record was never shown to anybody.
func newKey(p *plan, v *vault, r *ring, kind string, now time.Time) error {
	for _, selector := range selectors(kind, now) {
		if r.find(selector) != nil {
			continue
		}
		name := keyFile(r.domain, selector)
		text, err := v.read(name, maxRing)
		switch {
		case err == nil:
			if key, err := dkimkey.Parse(text); err != nil || kindOf(key) != kind {
				continue
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		default:
			what := "ed25519"
			if kind == kindRSA {
				what = fmt.Sprintf("rsa, %d bits", keyBits)
			}
			p.add(func() error {
				_, text, err := dkimkey.Make(kind, keyBits)
				if err != nil {
					return err
				}
				return v.write(name, text)
			}, "%s: a new key (%s)", v.path(name), what)
		}
		r.add(selector, kind, Pending, now)
		return nil
	}
	return fmt.Errorf("%s: no selector is left for a key of %s", r.domain, now.UTC().Format("2006-01"))
}
