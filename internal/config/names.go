package config

import (
	"maps"
	"slices"
	"strings"
)

// A NameCheck is what postconf says of names. Each is as it stands in a
// message; the lists are sorted by name.
type NameCheck struct {
	UndefinedMain, UndefinedMaster []string // $name in a value, without a value or a default
	UnusedMain, UnusedMaster       []string // name=value that nothing reads or refers to
	ReadOnlyMaster                 []string // name=value of a parameter that only the service itself can set
	Tables                         []string // warnings about the files with settings of tables in databases
}

// Unused says whether main.cf sets a parameter that nothing reads or refers to.
func (n *NameCheck) Unused(name string) bool {
	return slices.ContainsFunc(n.UnusedMain, func(setting string) bool { return strings.HasPrefix(setting, name+"=") })
}

// CheckNames looks for names that are likely mistyped, in main.cf, in the
// options of services, one list for each, and in the files of the tables that these
// name. A service's values refer to its own options and to main.cf; those of main.cf to
// both. What a parameter that is not expanded has after a $ is no reference.
func (c *Config) CheckNames(services [][]Override) *NameCheck {
	files := make(map[string]bool)
	main := c.mainScope(files)
	var list []*scope
	elsewhere := make(map[string]bool) // what services want of main.cf
	options := make(map[string]bool)
	check := &NameCheck{}
	for _, overrides := range services {
		s := c.serviceScope(overrides, files)
		for name := range s.uses {
			if _, own := s.values[name]; !own {
				elsewhere[name] = true
			}
		}
		for name := range s.values {
			options[name] = true
		}
		list = append(list, s)
	}
	for _, name := range slices.Sorted(maps.Keys(main.refers)) {
		if !main.has(name) && !options[name] {
			check.UndefinedMain = append(check.UndefinedMain, name)
		}
	}
	for name, value := range sorted(main.values) {
		if _, known := Lookup(name); !known && !main.uses[name] && !elsewhere[name] {
			check.UnusedMain = append(check.UnusedMain, name+"="+value)
		}
	}
	for _, s := range list {
		for _, name := range slices.Sorted(maps.Keys(s.refers)) {
			if !s.has(name) && !main.has(name) {
				check.UndefinedMaster = append(check.UndefinedMaster, name)
			}
		}
		for name, value := range sorted(s.values) {
			_, inMain := main.values[name]
			if _, known := Lookup(name); !known && !s.uses[name] && !main.uses[name] && !(inMain && elsewhere[name]) {
				check.UnusedMaster = append(check.UnusedMaster, name+"="+value)
			}
		}
		for name, value := range sorted(s.fixed) {
			check.ReadOnlyMaster = append(check.ReadOnlyMaster, name+"="+value)
		}
	}
	check.Tables = checkTableFiles(files)
	return check
}

// mainScope is main.cf. files gets the files of tables that it names.
func (c *Config) mainScope(files map[string]bool) *scope {
	main := newScope()
	classes := c.restrictionClasses()
	for name, s := range c.settings {
		main.add(name, s.raw)
		if _, known := Lookup(name); known || slices.Contains(classes, name) {
			main.addTables(name, c.expanded(s.raw), files)
		}
	}
	for _, class := range classes {
		main.refers[class], main.uses[class] = true, true
	}
	return main
}

// serviceScope are the options of a service.
func (c *Config) serviceScope(overrides []Override, files map[string]bool) *scope {
	s := newScope()
	own := c
	if slices.ContainsFunc(overrides, func(o Override) bool { return strings.Contains(o.Value, "$") }) {
		if with, _ := c.With(overrides...); with != nil {
			own = with
		}
	}
	for _, o := range overrides {
		if readOnly(o.Name) {
			s.fixed[o.Name] = o.Value
			continue
		}
		s.add(o.Name, o.Value)
		if _, known := Lookup(o.Name); known {
			s.addTables(o.Name, own.expanded(o.Value), files)
		}
	}
	for _, class := range classesOf(overrides) {
		s.uses[class] = true
	}
	return s
}

// expanded is text after $name expansion, or as it is if that fails.
func (c *Config) expanded(text string) string {
	if value, err := c.Expand(text); err == nil {
		return value
	}
	return text
}

// sorted goes over a map in order of its keys.
func sorted(m map[string]string) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}

// A scope is main.cf, or the options of one service.
type scope struct {
	values map[string]string
	refers map[string]bool   // after a $
	uses   map[string]bool   // that, and what tables may have as settings
	fixed  map[string]string // values of parameters that cannot be set
}

func newScope() *scope {
	return &scope{make(map[string]string), make(map[string]bool), make(map[string]bool), make(map[string]string)}
}

func (s *scope) add(name, value string) {
	s.values[name] = value
	if p, known := Lookup(name); known && p.Type == Raw {
		return
	}
	references(value, func(name string) { s.refers[name], s.uses[name] = true, true })
}

// addTables looks at the tables in the value of a parameter that is read: their settings in
// main.cf are used, and files gets their files as type:path.
func (s *scope) addTables(name, value string, files map[string]bool) {
	if p, _ := Lookup(name); p.Type == Raw {
		return
	}
	tableSettings(value, func(name string) { s.uses[name] = true })
	for _, table := range tableFile().FindAllStringSubmatch(value, -1) {
		files[table[1]+":"+table[2]] = true
	}
}

// has says whether name has a value here, or a default.
func (s *scope) has(name string) bool {
	if _, set := s.values[name]; set {
		return true
	}
	_, known := Lookup(name)
	return known
}

// A Reference is a $name in a value.
type Reference struct {
	File    string // where the value is set
	Line    int
	Setting string // the parameter that is set; in master.cf with the service before it
	Name    string // what is after the $
	Meant   string // what it is likely misspelt for, or ""
}

// Undefined lists the references, in order of place, that stand for nothing:
// neither main.cf nor the options of a service set the name, and it has no default.
func (c *Config) Undefined(services []Service) (list []Reference) {
	main, options := newScope(), make(map[string]bool)
	for name, s := range c.settings {
		main.add(name, s.raw)
	}
	for _, class := range c.restrictionClasses() {
		main.values[class] += "" // which the services may have
	}
	for i := range services {
		for _, o := range services[i].Overrides() {
			options[o.Name] = true
		}
	}
	look := func(r Reference, parameter, value string, has func(string) bool) {
		one := newScope()
		one.add(parameter, value)
		for _, r.Name = range slices.Sorted(maps.Keys(one.refers)) {
			if !has(r.Name) {
				r.Meant = Nearest(r.Name, func(yield func(string) bool) {
					for name := range main.values {
						if !yield(name) {
							return
						}
					}
				})
				if r.Meant == "" {
					r.Meant = NearestParameter(r.Name)
				}
				list = append(list, r)
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.settings), c.byPlace) {
		_, file, line := c.IsSet(name)
		look(Reference{File: file, Line: line, Setting: name}, name, c.settings[name].raw,
			func(name string) bool { return main.has(name) || options[name] })
	}
	for i := range services {
		s, own := &services[i], newScope()
		for _, o := range s.Overrides() {
			own.add(o.Name, o.Value)
		}
		for _, o := range s.Overrides() {
			look(Reference{File: s.File, Line: s.Line, Setting: "service " + s.Name + "/" + s.Type + ": -o " + o.Name}, o.Name, o.Value,
				func(name string) bool { return own.has(name) || main.has(name) })
		}
	}
	return list
}
