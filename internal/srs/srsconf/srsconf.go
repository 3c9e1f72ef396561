// Package srsconf reads from main.cf how senders are rewritten (package srs).
package srsconf

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/smallfile"
	"posthaste/internal/srs"
)

// maxFile bounds the file of secrets, in octets, and minSecret the length of one: a shorter one
// can be found by trying.
const (
	maxFile   = 64 << 10
	minSecret = 8
)

// Load makes the Rewriter of srs_domain; nil without an error when that is empty. It reads
// srs_secret_file, which as a rule only root may read, so services call it before they give up their
// rights. A change of the file needs a reload.
func Load(cfg *config.Config) (*srs.Rewriter, error) {
	domain := cfg.String("srs_domain")
	if domain == "" {
		return nil, nil
	}
	if !resolver.ValidHostname(domain) || !strings.Contains(domain, ".") {
		return nil, fmt.Errorf("srs_domain: %q is not a domain", domain)
	}
	r := &srs.Rewriter{Domain: domain, Separator: cfg.String("srs_separator")[0], HashLength: cfg.Int("srs_hash_length"),
		HashMinimum: cfg.Int("srs_hash_minimum"), MaxDays: int(cfg.Duration("srs_max_age") / (24 * time.Hour))}
	if r.HashMinimum > r.HashLength {
		return nil, fmt.Errorf("srs_hash_minimum: %d is more than srs_hash_length, which is %d: no address of this system would be valid", r.HashMinimum, r.HashLength)
	}
	for _, own := range cfg.List("srs_forward_domains") {
		if !resolver.ValidHostname(own) || !strings.Contains(own, ".") {
			return nil, fmt.Errorf("srs_forward_domains: %q is not a domain", own)
		}
		r.Domains = append(r.Domains, strings.ToLower(own))
	}
	var err error
	r.Secrets, err = secrets(cfg.String("srs_secret_file"))
	if err != nil {
		return nil, fmt.Errorf("srs_secret_file: %w", err)
	}
	return r, nil
}

// secrets reads a file as postsrsd has it: each line that is not empty is a secret.
func secrets(path string) ([]string, error) {
	text, err := smallfile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	var list []string
	for n, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "\r")
		switch {
		case line == "":
		case len(line) < minSecret:
			return nil, fmt.Errorf("%s:%d: a secret must have at least %d characters", path, n+1, minSecret)
		default:
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: there is no secret in it", path)
	}
	return list, nil
}
