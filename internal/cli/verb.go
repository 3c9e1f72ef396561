package cli

// A Verb is one of the commands of a tool that has several, as list is of "posthaste cert list".
type Verb struct {
	Letters  string // its options, as Getopt takes them
	Min, Max int    // how many arguments it has
	Do       func() error
}

// Run carries out the verb that args begin with, and returns the exit status. begin is told its options and
// arguments before. Errors of both have their status by [Errorf]. A command line that is no verb's gets
// usage, and output that cannot be written is ExitIO.
func (t *Tool) Run(verbs map[string]Verb, usage string, args []string, begin func(opts []Option, rest []string) error) int {
	if len(args) == 0 || verbs[args[0]].Do == nil {
		return t.Fatal(ExitUsage, "%s", usage)
	}
	verb := verbs[args[0]]
	opts, rest, err := Getopt(args[1:], verb.Letters)
	if err != nil || len(rest) < verb.Min || len(rest) > verb.Max {
		return t.Fatal(ExitUsage, "%s", usage)
	}
	if err := begin(opts, rest); err != nil {
		return t.Fail(err)
	}
	w := &ErrWriter{W: t.Stdout}
	t.Stdout = w
	if err := verb.Do(); err != nil {
		return t.Fail(err)
	}
	if w.Err != nil {
		return t.Fatal(ExitIO, "%v", w.Err)
	}
	return 0
}
