package mtasts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
)

// Own is the policy of this system's own domains, by the parameters policyhost_sts_*. It is nil if
// policyhost_sts_mode is off. An error names the parameter.
func Own(cfg *config.Config) (*Policy, error) {
	mode := cfg.String("policyhost_sts_mode")
	if mode == "off" {
		return nil, nil
	}
	p := &Policy{Mode: Mode(mode), MaxAge: cfg.Duration("policyhost_sts_max_age")}
	names := resolver.NamesOf(cfg)
	for _, mx := range cfg.List("policyhost_sts_mx") {
		rest, wild := strings.CutPrefix(mx, "*.")
		host, ok := names.ToASCII(rest)
		if !ok || !strings.Contains(host, ".") {
			return nil, fmt.Errorf("policyhost_sts_mx: %s: expected the name of an MX host, or *. and its parent domain", mx)
		}
		if wild {
			host = "*." + host
		}
		p.MX = append(p.MX, host)
	}
	switch {
	case len(p.MX) > maxMX:
		return nil, fmt.Errorf("policyhost_sts_mx: %d hosts, expected at most %d", len(p.MX), maxMX)
	case len(p.MX) == 0 && p.Mode != None:
		return nil, fmt.Errorf("policyhost_sts_mx is empty: expected the MX hosts, with policyhost_sts_mode = %s", mode)
	}
	return p, nil
}

// String is the policy as it is published (RFC 8461 section 3.2).
func (p *Policy) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: STSv1\r\nmode: %s\r\n", p.Mode)
	for _, mx := range p.MX {
		fmt.Fprintf(&b, "mx: %s\r\n", mx)
	}
	fmt.Fprintf(&b, "max_age: %d\r\n", p.MaxAge/time.Second)
	return b.String()
}

// ID is the id for the record of the policy: another one for each policy.
func (p *Policy) ID() string {
	sum := sha256.Sum256([]byte(p.String()))
	return hex.EncodeToString(sum[:10])
}
