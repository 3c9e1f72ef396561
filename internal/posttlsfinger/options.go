package posttlsfinger

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/tlspolicy"
)

const usage = `usage: posttls-finger [-cCfSvw] [-a family] [-t conn_tmout] [-T cmd_tmout] [-L logopts] [-h host_lookup] [-l level]
	[-d mdalg] [-g grade] [-p protocols] [-A tafile] [-F CAfile.pem] [-P CApath/] [-s servername]
	[ [-H chainfiles] | [-k certfile [-K keyfile]] ] [-m count] [-r delay] [-M insecure_mx_policy] [-o name=value] destination [match ...]`

var errUsage = errors.New("usage")

// logging is what is said of TLS.
type logging uint8

const (
	logSummary logging = 1 << iota
	logPeer
	logMatch
	logUntrusted
	logCache
	logVerbose
)

// logWords are the words of -L. A word without a value asks for what crypto/tls does not tell.
var logWords = map[string]logging{
	"0": 0, "none": 0, "1": logSummary, "routine": logSummary, "summary": logSummary,
	"2": logSummary | logCache | logVerbose, "debug": logSummary | logCache | logVerbose,
	"untrusted": logUntrusted, "peercert": logPeer, "certmatch": logMatch, "cache": logCache,
	"verbose": logVerbose | logPeer | logMatch | logUntrusted | logCache,
}

// options are the command line.
type options struct {
	dest       string // as it is written
	host       string
	path       string // of a socket
	port       int
	noMX       bool
	match      []string
	lmtp       bool
	wrapper    bool
	quiet      bool // -c
	chain      bool // -C
	verbose    bool
	family     resolver.Family
	useDNS     bool
	useNative  bool
	level      tlspolicy.Level
	insecureMX tlspolicy.Level
	logs       logging
	forceTLSA  bool
	digest     string // "": as main.cf says
	grade      string
	protocols  string
	anchors    []string // -A
	caFile     string
	caPath     string
	chains     []string
	cert, key  string
	serverName string
	connTime   time.Duration
	cmdTime    time.Duration
	reconnect  time.Duration // 0: never
	reconnects int
	overrides  []config.Override
}

func parse(args []string) (*options, error) {
	o := &options{family: resolver.IPv4 | resolver.IPv6, useDNS: true, level: tlspolicy.Dane, insecureMX: tlspolicy.Dane,
		logs: logSummary | logMatch, grade: "medium", protocols: ">=TLSv1", connTime: 30 * time.Second, cmdTime: 30 * time.Second, reconnects: 5}
	opts, rest, err := cli.Getopt(args, "a:A:cCd:fF:g:h:H:k:K:l:L:m:M:o:p:P:r:s:St:T:vwX")
	if err != nil {
		return nil, errUsage
	}
	for _, opt := range opts {
		if err := o.set(opt.Letter, opt.Value); err != nil {
			return nil, err
		}
	}
	if len(rest) == 0 {
		return nil, errUsage
	}
	if len(o.chains) > 0 && (o.cert != "" || o.key != "") {
		return nil, errors.New("-H: not together with -k and -K")
	}
	o.dest, o.match = rest[0], rest[1:]
	return o, o.destination(rest[0])
}

// set sets an option.
func (o *options) set(letter byte, v string) (err error) {
	switch letter {
	case 'A':
		o.anchors = append(o.anchors, v)
	case 'c':
		o.quiet = true
	case 'C':
		o.chain = true
	case 'f':
		o.forceTLSA = true
	case 'F':
		o.caFile = v
	case 'g':
		o.grade = v
	case 'H':
		o.chains = append(o.chains, words(v)...)
	case 'k':
		o.cert = v
	case 'K':
		o.key = v
	case 'p':
		o.protocols = v
	case 'P':
		o.caPath = v
	case 's':
		o.serverName = v
	case 'S':
		o.lmtp = true
	case 'v':
		o.verbose = true
	case 'w':
		o.wrapper = true
	case 'X':
		return errors.New("-X: there is no tlsproxy, every service speaks TLS itself")
	default:
		return o.setChecked(letter, v)
	}
	return nil
}

// setChecked sets an option whose value may be wrong.
func (o *options) setChecked(letter byte, v string) (err error) {
	switch letter {
	case 'a':
		family, ok := map[string]resolver.Family{"any": resolver.IPv4 | resolver.IPv6, "ipv4": resolver.IPv4, "ipv6": resolver.IPv6}[v]
		if o.family = family; !ok {
			err = fmt.Errorf("-a %s: expected any, ipv4 or ipv6", v)
		}
	case 'd':
		o.digest, err = v, tlspolicy.CheckDigest(v)
	case 'h':
		o.useDNS, o.useNative = false, false
		for _, w := range words(v) {
			switch w {
			case "dns":
				o.useDNS = true
			case "native":
				o.useNative = true
			default:
				return fmt.Errorf("-h %s: expected dns, native or both", v)
			}
		}
	case 'l':
		if o.level, err = tlspolicy.ParseLevel(v); err != nil || o.level == tlspolicy.HalfDane {
			err = fmt.Errorf("invalid TLS level %q", v)
		}
	case 'L':
		err = o.setLog(v)
	case 'm':
		o.reconnects, err = number(letter, v, 1000)
	case 'M':
		if o.insecureMX, err = tlspolicy.ParseLevel(v); err != nil || o.insecureMX != tlspolicy.Dane && o.insecureMX > tlspolicy.Encrypt || o.insecureMX == tlspolicy.None {
			err = fmt.Errorf("-M %s: expected dane, encrypt or may", v)
		}
	case 'o':
		var over config.Override
		if over, err = config.ParseOverride(v); err == nil {
			o.overrides = append(o.overrides, over)
		}
	case 'r':
		o.reconnect, err = seconds(letter, v)
	case 't':
		o.connTime, err = seconds(letter, v)
	case 'T':
		o.cmdTime, err = seconds(letter, v)
	}
	return err
}

func (o *options) setLog(v string) error {
	o.logs = 0
	for _, w := range words(v) {
		bits, ok := logWords[strings.ToLower(w)]
		if !ok {
			return fmt.Errorf("-L %s: expected none, routine, untrusted, peercert, certmatch, cache, verbose or debug (crypto/tls has no traces of handshakes and packets)", w)
		}
		o.logs |= bits
	}
	return nil
}

func words(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
}

func number(letter byte, v string, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("-%c %s: expected a number from 1 to %d", letter, v, most)
	}
	return n, nil
}

func seconds(letter byte, v string) (time.Duration, error) {
	n, err := number(letter, v, 86400)
	return time.Duration(n) * time.Second, err
}

// The ports of destinations that name none.
const (
	smtpPort = 25
	lmtpPort = 24
)

// destination reads host, [host], host:port, inet:host and unix:path.
func (o *options) destination(text string) error {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !o.lmtp || !filepath.IsAbs(path) {
			return fmt.Errorf("%s: a socket needs -S and an absolute path", text)
		}
		o.path = path
		return nil
	}
	text = strings.TrimPrefix(text, "inet:")
	service := ""
	if inner, after, ok := strings.Cut(strings.TrimPrefix(text, "["), "]"); ok && strings.HasPrefix(text, "[") {
		o.host, o.noMX = inner, true
		if len(inner) > 5 && strings.EqualFold(inner[:5], "ipv6:") {
			o.host = inner[5:]
		}
		if service, ok = strings.CutPrefix(after, ":"); !ok && after != "" {
			return fmt.Errorf("%s: expected host, [host] or either with :port", text)
		}
	} else {
		o.host, service, _ = strings.Cut(text, ":")
	}
	if o.host == "" {
		return fmt.Errorf("%q: expected a host or a domain", text)
	}
	if o.port = smtpPort; o.lmtp {
		o.port = lmtpPort
	}
	if service != "" {
		port, err := net.LookupPort("tcp", service)
		if err != nil || port == 0 {
			return fmt.Errorf("unknown service: %s/tcp", service)
		}
		o.port = port
	}
	return nil
}
