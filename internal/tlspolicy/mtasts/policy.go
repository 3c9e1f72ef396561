package mtasts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/resolver"
)

// Mode is what a domain asks senders to do when its policy is not met.
type Mode string

const (
	Enforce Mode = "enforce" // do not deliver
	Testing Mode = "testing" // deliver, and report
	None    Mode = "none"    // there is no policy any more
)

// Policy is a domain's policy, RFC 8461 section 3.2.
type Policy struct {
	Mode   Mode          `json:"mode"`
	MX     []string      `json:"mx"` // names of MX hosts, or *.parent
	MaxAge time.Duration `json:"max_age"`
}

// Bounds of a policy.
const (
	maxPolicy = 64 << 10 // octets, RFC 8461 section 3.3
	maxMX     = 100
	maxAge    = 31557600 * time.Second // a year, section 3.2
)

// ParsePolicy reads a policy as it is published: lines "key: value". Keys that
// are not known are passed over; of a key that occurs twice, other than mx,
// the first counts. Names of hosts that are international are converted by names.
func ParsePolicy(text string, names resolver.Names) (*Policy, error) {
	p := new(Policy)
	seen := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\r"), ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok && key == "":
		case !ok:
			return nil, fmt.Errorf("policy line %q: expected key: value", clip(key))
		case key == "mx":
			host, good := names.ToASCII(strings.TrimPrefix(value, "*."))
			if !good {
				return nil, fmt.Errorf("policy: mx: %q is not a host name", clip(value))
			}
			if strings.HasPrefix(value, "*.") {
				host = "*." + host
			}
			if len(p.MX) < maxMX {
				p.MX = append(p.MX, host)
			}
		default:
			if _, dup := seen[key]; !dup {
				seen[key] = value
			}
		}
	}
	if seen["version"] != "STSv1" {
		return nil, fmt.Errorf("policy: version is %q, expected STSv1", clip(seen["version"]))
	}
	switch p.Mode = Mode(seen["mode"]); p.Mode {
	case Enforce, Testing:
		if len(p.MX) == 0 {
			return nil, errors.New("policy: no mx")
		}
	case None:
	default:
		return nil, fmt.Errorf("policy: mode is %q, expected enforce, testing or none", clip(seen["mode"]))
	}
	n, err := strconv.ParseUint(seen["max_age"], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("policy: max_age is %q, expected seconds", clip(seen["max_age"]))
	}
	p.MaxAge = min(time.Duration(n)*time.Second, maxAge)
	return p, nil
}

// clip shortens a stranger's text for a message.
func clip(s string) string { return s[:min(len(s), 60)] }

// ParseRecord reads the TXT records of _mta-sts.DOMAIN, and returns the
// policy's identifier. There is a policy only if just one record is one of
// MTA-STS, and well-formed (RFC 8461 section 3.1).
func ParseRecord(records []string) (id string, ok bool) {
	for _, r := range records {
		version, rest, _ := strings.Cut(r, ";")
		if strings.TrimRight(version, " \t") != "v=STSv1" {
			continue
		}
		if ok {
			return "", false
		}
		for f := range strings.SplitSeq(rest, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(f), "=")
			if strings.TrimSpace(key) == "id" && id == "" {
				id = strings.TrimSpace(value)
			}
		}
		ok = true
	}
	return id, ok && validID(id)
}

func validID(id string) bool {
	if len(id) < 1 || len(id) > 32 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
