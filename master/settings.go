// master.cf as master needs it: which services get a process, of which program, with
// which arguments and endpoints. Programs of Postfix that need no process here are
// recognized, so that a master.cf of Postfix works as it is.

package master

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/service"
)

// An entry is a service of master.cf that gets a process. It is not changed once its
// sockets are open, and belongs to the settings that it was read with.
type entry struct {
	config.Service
	spec      service.Spec
	line      service.CommandLine
	endpoints []endpoint
}

// key tells services apart, as in postconf -M.
func (e *entry) key() string { return e.Name + "/" + e.Type }

// builtIn are Postfix's programs that need no process here, and who does their work. The
// texts are for "check -v" and the log.
var builtIn = map[string]string{
	"dnsblog":    "smtpd asks DNS lists itself",
	"flush":      "qmgr knows what waits for a destination",
	"postscreen": "smtpd judges clients before it greets them",
	"scache":     "smtp keeps its own sessions",
	"tlsmgr":     "each service keeps its own TLS sessions and keys",
	"tlsproxy":   "smtpd does TLS itself",
}

// aliases are programs that go by another name here.
var aliases = map[string]string{"oqmgr": "qmgr", "nqmgr": "qmgr"}

// loadSettings reads main.cf and master.cf and works out every endpoint. A mistake in one
// entry of master.cf costs that entry alone, and is in settings.faulty. The error has
// everything that is wrong with main.cf, one mistake a line; or with master.cf, if no
// service is left.
func loadSettings(opts Options) (*settings, error) {
	cfg, err := config.Load(opts.ConfigDir)
	if err != nil {
		return nil, err
	}
	services, faulty, err := config.LoadMaster(opts.ConfigDir, cfg)
	if err != nil {
		return nil, err
	}
	s := makeSettings(cfg, services, opts.Services)
	s.addFaulty(faulty)
	// A mail system without services would start and do nothing, which nobody would
	// notice.
	if len(s.services) == 0 && len(s.faulty) > 0 {
		return nil, config.JoinLineErrors(s.faulty)
	}
	for _, e := range s.services {
		e.line.Verbose += opts.Verbose
	}
	return s, nil
}

// addFaulty adds malformed entries of master.cf, in the order of the file.
func (s *settings) addFaulty(list []*config.LineError) {
	s.faulty = append(s.faulty, list...)
	slices.SortStableFunc(s.faulty, func(a, b *config.LineError) int { return a.Line - b.Line })
}

// keepFaulty keeps services that run now under their old entries where the new ones are
// faulty: a slip in an editor must not take a service away. It returns those that it
// kept.
func (s *settings) keepFaulty(old *settings) (kept []*entry) {
	// An endpoint that a correct entry uses now belongs to that entry.
	used := make(map[string]bool)
	for _, e := range s.services {
		used[e.key()] = true
		for _, ep := range e.endpoints {
			used[ep.String()] = true
		}
	}
	for _, e := range old.services {
		faulty := slices.ContainsFunc(s.faulty, func(f *config.LineError) bool {
			return f.Concerns(e.Name, e.Type)
		})
		if !faulty || used[e.key()] || slices.ContainsFunc(e.endpoints, func(ep endpoint) bool { return used[ep.String()] }) {
			continue
		}
		// The old options may not fit the new main.cf.
		if _, err := e.configured(s.config); err == nil {
			kept = append(kept, e)
		}
	}
	s.services = append(s.services, kept...)
	return kept
}

// Notes says what there is to know about services that have no process of their own. The
// error has what is wrong with any, one a line.
func Notes(cfg *config.Config, services []config.Service, specs map[string]service.Spec) ([]string, error) {
	s := makeSettings(cfg, services, specs)
	if err := config.JoinLineErrors(s.faulty); err != nil {
		return nil, err
	}
	return s.notes, nil
}

// Knows says whether master.cf may name a program, ours or one of Postfix's whose work is
// done elsewhere.
func Knows(program string, specs map[string]service.Spec) bool {
	if other, ok := aliases[program]; ok {
		program = other
	}
	_, known := specs[program]
	_, built := builtIn[program]
	return known || built
}

// makeSettings turns the lines of master.cf into entries. The first of two services that
// want the same endpoint gets it.
func makeSettings(cfg *config.Config, services []config.Service, specs map[string]service.Spec) *settings {
	s := &settings{config: cfg, queue: cfg.String("queue_directory")}
	disabled := cfg.List("master_service_disable")
	behind := behindPostscreen(cfg, services)
	services = withMetrics(cfg, services)
	fault := func(c *config.Service, err error) {
		s.faulty = append(s.faulty, &config.LineError{File: c.File, Line: c.Line, Name: c.Name, Type: c.Type,
			Err: fmt.Errorf("service %s/%s: %w", c.Name, c.Type, err)})
	}
	used := make(map[string]bool) // endpoints
	for _, c := range services {
		// First of all: a service that is turned off may be faulty.
		if matches(disabled, c) {
			s.notes = append(s.notes, fmt.Sprintf("service %s/%s is turned off (master_service_disable)", c.Name, c.Type))
			continue
		}
		if behind != nil && c.Name == behind.Name && c.Type == behind.Type {
			continue // it serves postscreen's socket
		}
		spec, note, err := program(cfg, &c, behind, specs)
		if note != "" {
			s.notes = append(s.notes, fmt.Sprintf("service %s/%s%s", c.Name, c.Type, note))
		}
		var e *entry
		if err == nil && spec != nil {
			e, err = newEntry(cfg, c, *spec)
		}
		if err == nil && e != nil {
			err = claim(used, e)
		}
		if err != nil {
			fault(&c, err)
		} else if e != nil {
			s.services = append(s.services, e)
		}
	}
	return s
}

// claim notes the endpoints of a service as used. It changes nothing when one is taken.
func claim(used map[string]bool, e *entry) error {
	for _, ep := range e.endpoints {
		if used[ep.String()] {
			return fmt.Errorf("%s is used by an earlier line of master.cf", ep)
		}
	}
	for _, ep := range e.endpoints {
		used[ep.String()] = true
	}
	return nil
}

// warnings are what an operator should know about parameters and options that have no
// effect or are not known.
func (s *settings) warnings() []string {
	list := s.config.Warnings()
	for _, e := range s.services {
		list = append(list, e.Warnings(s.config)...)
		if e.line.Verbose > 0 && !e.spec.Talks {
			list = append(list, fmt.Sprintf("%s:%d: service %s: -v has no effect: %s has no dialogue to log", e.File, e.Line, e.key(), e.Command))
		}
	}
	return list
}

// withMetrics adds the metrics service when metrics_listen asks for it, since no
// master.cf of Postfix has it, and leaves it out otherwise.
func withMetrics(cfg *config.Config, services []config.Service) []config.Service {
	is := func(c config.Service) bool { return c.Command == service.MetricsName }
	switch on := cfg.String("metrics_listen") != ""; {
	// A line in master.cf does not turn it on.
	case !on:
		return slices.DeleteFunc(slices.Clone(services), is)
	case slices.ContainsFunc(services, is):
		return services
	}
	return append(slices.Clone(services), config.Service{Name: service.MetricsName, Type: "unix", Private: true,
		Unprivileged: true, MaxProc: 1, Command: service.MetricsName, File: "main.cf (metrics_listen)"})
}

// program finds the program of a service; a nil spec without an error means that what it
// does is built in. postscreen is replaced by one process together with the smtpd behind
// it. note follows the service's name in the log.
func program(cfg *config.Config, c, behind *config.Service, specs map[string]service.Spec) (spec *service.Spec, note string, err error) {
	if other, ok := aliases[c.Command]; ok {
		c.Command = other
	}
	if c.Command == "postscreen" && c.Type == "inet" {
		if behind == nil {
			return nil, "", fmt.Errorf("postscreen is built in, and hands its clients to service %s/pass, which master.cf does not have: name smtpd as the command here",
				cfg.String("smtpd_service_name"))
		}
		if _, ok := specs[behind.Command]; ok {
			return screened(c, behind, specs)
		}
		c.Command = behind.Command
	} else if why := doneElsewhere(cfg, c); why != "" {
		return nil, " is built in: " + why, nil
	} else if found, ok := specs[c.Command]; ok {
		return &found, "", nil
	} else if why, ok := builtIn[c.Command]; ok {
		return nil, " is built in: " + why, nil
	}
	return nil, "", fmt.Errorf("command %s: expected one of: %s; put a # before the line if you do not need the service",
		c.Command, strings.Join(names(specs), " "))
}

// doneElsewhere says of a service that nobody would ever ask, though its program is one of
// ours, who does its work; "" of any other. Every master.cf of Postfix has three such.
func doneElsewhere(cfg *config.Config, c *config.Service) string {
	bounce := cfg.String("bounce_service_name")
	switch {
	// Only a socket that no setting of ours names is of no use.
	case c.Type != "unix":
	case c.Command == "bounce" && c.Name == "defer" && bounce != "defer":
		return "why mail is delayed is in the queue's log"
	case c.Command == "bounce" && c.Name == "trace" && bounce != "trace":
		return "service " + bounce + " writes all reports"
	case c.Command == "proxymap" && c.Name == "proxywrite" && cfg.String("proxymap_service_name") != "proxywrite":
		return "services write their own files"
	}
	return ""
}

// screened makes one service of postscreen and the smtpd behind it, with the options of
// both. Those of smtpd come last, since most options are for it, and its process limit
// counts: it is the one on sessions.
func screened(c, behind *config.Service, specs map[string]service.Spec) (*service.Spec, string, error) {
	c.Args, c.MaxProc = slices.Concat(c.Args, behind.Args), behind.MaxProc
	// The stricter of the two counts for the one process.
	c.Chroot = c.Chroot || behind.Chroot
	name := "postscreen"
	if _, ok := specs[name]; !ok {
		name = behind.Command
	}
	c.Command = name
	found := specs[name]
	return &found, fmt.Sprintf(": postscreen and the smtpd behind it are one process (%s), with the options of service %s/%s too, and its process limit", name, behind.Name, behind.Type), nil
}

// behindPostscreen is the service that postscreen hands its clients to, if postscreen has
// the SMTP port; nil otherwise.
func behindPostscreen(cfg *config.Config, services []config.Service) *config.Service {
	if !slices.ContainsFunc(services, func(c config.Service) bool { return c.Command == "postscreen" && c.Type == "inet" }) {
		return nil
	}
	name := cfg.String("smtpd_service_name")
	for i, c := range services {
		if c.Name == name && c.Type == "pass" {
			return &services[i]
		}
	}
	return nil
}

// matches says whether master_service_disable has the service. The first pattern that
// matches decides; "!" makes it a no.
func matches(patterns []string, c config.Service) bool {
	for _, p := range patterns {
		p, not := strings.CutPrefix(p, "!")
		// "smtp.inet" is the older form of "smtp/inet".
		if p == c.Type || p == c.Name+"/"+c.Type || p == c.Name+"."+c.Type {
			return !not
		}
	}
	return false
}

// names are the programs that master.cf may name, for error messages.
func names(specs map[string]service.Spec) []string {
	list := make([]string, 0, len(specs)+len(builtIn))
	for name := range specs {
		list = append(list, name)
	}
	for name := range builtIn {
		list = append(list, name)
	}
	sort.Strings(list)
	return slices.Compact(list)
}

// newEntry works out the command line and the endpoints of a service, and tries its -o
// options.
func newEntry(cfg *config.Config, c config.Service, spec service.Spec) (*entry, error) {
	e := &entry{Service: c, spec: spec}
	var err error
	if e.endpoints, err = endpoints(cfg, c); err != nil {
		return nil, err
	}
	// What the process needs to know is on its command line, where ps shows it.
	e.line = service.CommandLine{
		Name: c.Name, Type: c.Type, Sockets: len(e.endpoints), MaxProc: c.MaxProc,
		Unprivileged: c.Unprivileged, Chroot: c.Chroot, Overrides: c.Overrides(),
	}
	if _, err = e.configured(cfg); err != nil {
		return nil, err
	}
	e.line.Args, e.line.Verbose, err = serviceArgs(c.Args)
	return e, err
}

// configured is main.cf as this service sees it, with its -o options.
func (e *entry) configured(cfg *config.Config) (*config.Config, error) {
	return cfg.With(e.line.Settings(e.spec.Process, os.Getpid())...)
}

// serviceArgs returns the arguments that are the service's own, and the number of -v
// options before them. -o options have been read already.
func serviceArgs(args []string) (own []string, verbose int, err error) {
	args = config.SeparateOptions(args)
	i := 0
	for ; i < len(args) && strings.HasPrefix(args[i], "-"); i++ {
		switch {
		case args[i] == "-o":
			i++
		case strings.HasPrefix(args[i], "-o"):
		case strings.Trim(args[i], "v") == "-":
			verbose += len(args[i]) - 1
		case args[i] == "-D":
			// A debugger is not started; the option is kept for old files.
		default:
			return nil, 0, fmt.Errorf("option %s: expected -o name=value, -v or -D", args[i])
		}
	}
	return args[i:], verbose, nil
}
