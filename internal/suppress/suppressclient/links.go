package suppressclient

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/optout"
)

// maxBase bounds unsubscribe_url, in octets: with a token behind it, it has to fit into a line.
const maxBase = 200

// ReadLinks reads how links to unsubscribe are made; nil without unsubscribe_url. Only root may be able to read the file with
// their secrets: who knows one can have anybody put on the list of any tenant.
func ReadLinks(cfg *config.Config) (*optout.Coder, error) {
	base := cfg.String("unsubscribe_url")
	if base == "" {
		return nil, nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !strings.HasSuffix(u.Path, "/") ||
		len(base) > maxBase || u.String() != base || strings.ContainsAny(base, "<>,") {
		return nil, fmt.Errorf("unsubscribe_url: %q: expected a URL such as https://unsubscribe.example.org/u/ (RFC 8058 wants https)", base)
	}
	c := &optout.Coder{Base: base, MaxDays: int(cfg.Duration("unsubscribe_max_age") / (24 * time.Hour))}
	path := cfg.String("unsubscribe_secret_file")
	if c.Secrets, err = secrets(cfg, "unsubscribe_secret_file"); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("unsubscribe_secret_file: %w", err)
	}
	if info.Mode().Perm()&0o026 != 0 {
		return nil, fmt.Errorf("unsubscribe_secret_file: %s: others than its owner and group can read it, or others than its owner can change it: chmod 600 %s", path, path)
	}
	return c, nil
}
