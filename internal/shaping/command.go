package shaping

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/resolver"
)

const usage = "usage: posthaste shaping check [-c config_dir] [file ...] | posthaste shaping explain [-c config_dir] [-f file] [-s source] domain | posthaste shaping acts [-c config_dir] | posthaste shaping lift [-c config_dir] target | posthaste shaping allow [-c config_dir] target"

// A tool is one run of "posthaste shaping".
type tool struct {
	cli.Tool
	dir    string
	files  []string
	source string
	rest   []string
	cfg    *config.Config
	dns    mxLookup // of a test; nil: the DNS
}

// mxLookup is the part of a resolver that is needed here.
type mxLookup interface {
	MX(ctx context.Context, domain string) (resolver.Answer[resolver.MX], error)
}

// Command is "posthaste shaping": it reads shaping files, and says what is wrong with them and what they say of a
// destination. It returns the exit status.
func Command(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return command(&tool{Tool: cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}}, args)
}

func command(t *tool, args []string) int {
	args = slices.Clone(args)
	for i, a := range args {
		if of, ok := strings.CutPrefix(a, "--source="); ok {
			// It may stand behind the domain, as people write it.
			t.source = of
			args = slices.Delete(args, i, i+1)
			break
		}
	}
	return t.Run(map[string]cli.Verb{
		"check":   {Letters: "c:", Max: 1000, Do: t.check},
		"explain": {Letters: "c:f:s:", Min: 1, Max: 1, Do: t.explain},
		"acts":    {Letters: "c:", Do: t.acts},
		"lift":    {Letters: "c:", Min: 1, Max: 1, Do: t.lift},
		"allow":   {Letters: "c:", Min: 1, Max: 1, Do: t.allow},
	}, usage, args, t.begin)
}

func (t *tool) begin(opts []cli.Option, rest []string) error {
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			t.dir = o.Value
		case 'f':
			t.files = append(t.files, o.Value)
		case 's':
			t.source = o.Value
		}
	}
	t.rest = rest
	return nil
}

// load reads main.cf if it must, and the files.
func (t *tool) load(files []string) (*Rules, []Warning, error) {
	if len(files) == 0 || t.dns == nil {
		cfg, err := config.Load(config.Dir(t.dir))
		switch {
		case err == nil:
			if t.cfg = cfg; len(files) == 0 {
				files = cfg.List("shaping_files")
			}
		case len(files) == 0:
			return nil, nil, cli.Errorf(cli.ExitConfig, "%v", err)
		}
	}
	if len(files) == 0 {
		return nil, nil, cli.Errorf(cli.ExitConfig, "shaping_files is empty: name a file")
	}
	rules, warnings, err := Load(files)
	if err != nil {
		return nil, nil, cli.Errorf(cli.ExitConfig, "%v", err)
	}
	return rules, warnings, nil
}

// check prints what has no effect, and how much has.
func (t *tool) check() error {
	rules, warnings, err := t.load(t.rest)
	if err != nil {
		return err
	}
	for _, w := range append(warnings, rules.Dead()...) {
		fmt.Fprintln(t.Stdout, w)
	}
	honoured, named, ignored := rules.Count()
	fmt.Fprintf(t.Stdout, "%d keys are honoured, %d are not, %d steer KumoMTA's own insides; %d providers, %d domains, %d rules of automation\n",
		honoured, named, ignored, len(rules.providers), len(rules.order), len(rules.Automation()))
	return nil
}

// explain prints what holds for a destination, and where it is said.
func (t *tool) explain() error {
	rules, _, err := t.load(t.files)
	if err != nil {
		return err
	}
	domain := strings.ToLower(strings.TrimSuffix(t.rest[0], "."))
	q := &Query{Domain: domain, Source: t.source}
	if err := t.lookup(rules, q); err != nil {
		t.Warn("%v: what depends on the mail hosts is left out", err)
	}
	s := rules.Resolve(q)
	fmt.Fprint(t.Stdout, domain)
	if t.source != "" {
		fmt.Fprintf(t.Stdout, " from %s", t.source)
	}
	fmt.Fprintf(t.Stdout, ": mail hosts %s\n", orNone(q.Hosts))
	if s.Provider != "" {
		fmt.Fprintf(t.Stdout, "  provider %s\n", s.Provider)
	}
	if len(q.Peers) > 0 {
		fmt.Fprintf(t.Stdout, "  the same mail hosts as %s\n", strings.Join(q.Peers, ", "))
	}
	for _, k := range s.Keys() {
		v := s.Values[k]
		fmt.Fprintf(t.Stdout, "  %s = %s (%s, %s)\n", k, v.Text, v.At, v.In)
	}
	for _, name := range s.Sections {
		for _, r := range rules.Section(name) {
			fmt.Fprintf(t.Stdout, "  automation %s (%s, %s)\n", r, r.At, r.Section)
		}
	}
	return nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none are known"
	}
	return strings.Join(list, ", ")
}

// String is the rule in words.
func (r *Rule) String() string {
	var acts, texts []string
	for i := range r.Actions {
		acts = append(acts, r.Actions[i].String())
	}
	for _, p := range r.patterns {
		texts = append(texts, p.text)
	}
	return fmt.Sprintf("%s for %v, trigger %s, on %s", strings.Join(acts, ", "), r.Duration, r.Trigger, strings.Join(texts, " | "))
}

// maxLookups bounds the questions to the DNS that are under way at once.
const maxLookups = 16

// lookup finds the mail hosts of the destination, and whose are the same.
func (t *tool) lookup(rules *Rules, q *Query) error {
	dns := t.dns
	if dns == nil {
		if t.cfg == nil {
			return fmt.Errorf("without main.cf no name is looked up")
		}
		o, err := resolver.Configured(t.cfg)
		if err != nil {
			return err
		}
		c := resolver.New(o)
		defer c.Close()
		dns = c
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	hosts, err := HostsOf(ctx, dns, q.Domain)
	if err != nil || len(hosts) == 0 {
		return err
	}
	q.Hosts = hosts
	names := rules.Rollups()
	same := make([]bool, len(names))
	turn := make(chan struct{}, maxLookups)
	var wg sync.WaitGroup
	for i, name := range names {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			list, err := HostsOf(ctx, dns, name)
			same[i] = err == nil && slices.Equal(list, hosts)
		})
	}
	wg.Wait()
	for i, name := range names {
		if same[i] && name != q.Domain {
			q.Peers = append(q.Peers, name)
		}
	}
	return nil
}

// HostsOf are a domain's MX hosts in the form of [Query.Hosts], in the order of their names; none: it has none.
func HostsOf(ctx context.Context, dns mxLookup, domain string) (hosts []string, err error) {
	ans, err := dns.MX(ctx, domain)
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			return nil, err
		}
		return nil, nil
	}
	for _, mx := range ans.Records {
		if h := strings.ToLower(strings.TrimSuffix(mx.Host, ".")); h != "" {
			hosts = append(hosts, h)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}
