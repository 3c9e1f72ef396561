package domain

import (
	"context"
	"crypto"
	"crypto/rsa"
	"fmt"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
)

// dkimRecord is the record that publishes a key.
func dkimRecord(e dkimkey.Entry, text string) Record {
	return Record{e.Selector + "._domainkey." + e.Domain, "TXT", text, "DKIM: the key that mail is signed with (RFC 6376)"}
}

// dkim checks that the domain's mail is signed, with keys that receivers find.
func (c *checker) dkim(ctx context.Context, r *report) {
	entries, err := c.site.Keys(ctx, c.domain)
	if err != nil {
		r.say(Error, err.Error(), "mail that should be signed is deferred")
		return
	}
	keys, v, err := c.site.ring(c.domain)
	if err != nil {
		r.say(Error, err.Error(), "the keys that are to sign mail are not known")
		keys = &ring{}
	} else {
		defer v.Close()
		c.ring(ctx, r, keys, v)
	}
	if len(entries) == 0 && len(keys.in(Pending)) == 0 {
		r.say(Error, "mail of "+c.domain+" is not signed: dkim_sign_maps has no entry for it", "large providers refuse or suspect unsigned mail: posthaste domain add makes a key and its entry")
		return
	}
	for _, e := range entries {
		key, err := dkimkey.Read(e.File)
		if err != nil {
			r.say(Error, fmt.Sprintf("selector %s of %s: %v", e.Selector, e.Domain, err), "mail that should be signed with it is deferred")
			continue
		}
		if owner := c.site.cfg.String("mail_owner"); owner != "" {
			if err := dkimkey.Readable(e.File, owner); err != nil {
				r.say(Error, fmt.Sprintf("selector %s of %s: %v", e.Selector, e.Domain, err), fmt.Sprintf("mail that should be signed with it is deferred: chgrp %s %s; chmod 640 %[2]s", owner, e.File))
				continue
			}
		}
		c.dkimKey(ctx, r, e, key)
		if e.Domain != c.domain && !strings.HasSuffix(c.domain, "."+e.Domain) {
			r.say(Warning, fmt.Sprintf("mail of %s is signed in the name of %s", c.domain, e.Domain), "a signature of another domain does not count for DMARC")
		}
	}
}

// ring checks the keys that do not sign yet, or do not sign any more.
func (c *checker) ring(ctx context.Context, r *report, keys *ring, v *vault) {
	for _, k := range keys.keys {
		name := k.Selector + "._domainkey." + c.domain
		a, err := c.DNS.TXT(ctx, name)
		gone := resolver.NotFound(err) || err == nil && dkimkey.Tags(a.Records[0])["p"] == ""
		if err != nil && !gone {
			r.unanswered(err)
			continue
		}
		var record Record
		if k.State == Pending || k.State == Retiring {
			if record, err = v.record(c.domain, k); err != nil {
				r.say(Error, err.Error(), "")
				continue
			}
		}
		switch {
		case k.State == Pending && gone:
			r.say(Warning, name+" does not exist: the key is pending", "publish it; then posthaste domain rotate has mail signed with it", record)
		case k.State == Pending:
			if err := shows(ctx, c.DNS, name, record.Data); err != nil {
				r.say(Error, err.Error(), "the key is pending, and is not used", record)
				continue
			}
			r.say(Note, name+" is published, and the key is pending", "posthaste domain rotate has mail signed with it as soon as every name server of the zone shows it")
		case k.State == Retiring && gone:
			r.say(Warning, name+" does not exist: mail that was signed with the key may still be under way", "publish it until posthaste domain check says that it may be removed", record)
		case k.State == Retiring:
			r.good("%s is still published, for mail that is under way", name)
		case k.State == Retired && !gone:
			r.say(Note, name+" may be removed", "nothing that was signed with the key is under way any more")
		}
	}
}

// dkimKey checks one key against what the DNS has.
func (c *checker) dkimKey(ctx context.Context, r *report, e dkimkey.Entry, key crypto.Signer) {
	text, err := dkimkey.Record(key)
	if err != nil {
		r.say(Error, err.Error(), "")
		return
	}
	name := e.Selector + "._domainkey." + e.Domain
	a, err := c.DNS.TXT(ctx, name)
	switch {
	case resolver.NotFound(err):
		r.say(Error, fmt.Sprintf("%s does not exist: signatures with %s fail", name, e.File), "publish the key", dkimRecord(e, text))
		return
	case err != nil:
		r.unanswered(err)
		return
	case len(a.Records) > 1:
		r.say(Error, fmt.Sprintf("%s has %d records", name, len(a.Records)), "receivers may take any of them (RFC 6376 section 3.6.2.2): leave the right one", dkimRecord(e, text))
		return
	}
	have, want := dkimkey.Tags(a.Records[0]), dkimkey.Tags(text)
	switch {
	case have["p"] == "":
		r.say(Error, fmt.Sprintf("%s revokes the key (p= is empty)", name), "signatures with it fail: publish the key, or sign with another one", dkimRecord(e, text))
		return
	case have["p"] != want["p"]:
		r.say(Error, fmt.Sprintf("%s is not the key in %s", name, e.File), "signatures with it fail", dkimRecord(e, text))
		return
	case have["v"] != "" && have["v"] != "DKIM1", have["k"] != want["k"] && (have["k"] != "" || want["k"] != "rsa"),
		have["h"] != "" && !contains(have["h"], "sha256"), have["s"] != "" && !contains(have["s"], "email") && !contains(have["s"], "*"):
		r.say(Error, fmt.Sprintf("%s has the right key, but its other tags keep receivers from using it: %s", name, printable(a.Records[0])), "publish it as it stands here", dkimRecord(e, text))
		return
	}
	if contains(have["t"], "y") {
		r.say(Warning, name+" says t=y: the domain tests DKIM", "receivers may treat signed mail as unsigned: remove t=y", dkimRecord(e, text))
	}
	if k, ok := key.Public().(*rsa.PublicKey); ok && k.N.BitLen() < 2048 {
		r.say(Warning, fmt.Sprintf("%s is an RSA key of %d bits", name, k.N.BitLen()), "2048 are expected today (RFC 8301 section 3.2): make a new key under another selector")
		return
	}
	r.good("%s is the key in %s", name, e.File)
}

// contains says whether a list with colons has a word.
func contains(list, word string) bool {
	for w := range strings.SplitSeq(list, ":") {
		if strings.EqualFold(strings.TrimSpace(w), word) {
			return true
		}
	}
	return false
}
