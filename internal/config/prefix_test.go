package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPrefix(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "lmtp_mx_address_limit = 7\nlmtp_tls_policy_maps = hash:a, hash:b\nslow_destination_rate_delay = 3s\ndefault_destination_concurrency_limit = 20\n")
	smtp, lmtp, slow := c.Prefix("smtp"), c.Prefix("lmtp"), c.Prefix("slow")
	if smtp.Int("mx_address_limit") != 5 || lmtp.Int("mx_address_limit") != 7 {
		t.Errorf("%d, %d", smtp.Int("mx_address_limit"), lmtp.Int("mx_address_limit"))
	}
	if smtp.Bool("skip_quit_response") == lmtp.Bool("skip_quit_response") {
		t.Error("the defaults of smtp and lmtp are the same")
	}
	if got := lmtp.List("tls_policy_maps"); !slices.Equal(got, []string{"hash:a", "hash:b"}) {
		t.Errorf("%q", got)
	}
	if got := lmtp.Name("tls_policy_maps"); got != "lmtp_tls_policy_maps" {
		t.Error(got)
	}
	if got := lmtp.String("tcp_port"); got != "24" {
		t.Error(got)
	}
	if got := slow.Duration("destination_rate_delay"); got != 3*time.Second {
		t.Error(got)
	}
	if got := slow.Int("destination_concurrency_limit"); got != 20 {
		t.Errorf("%d: the default of all transports counts", got)
	}
}

// prefixedNames are the variables, fields and parameters of one package's files that hold a Prefixed.
func prefixedNames(files []*ast.File) map[string]bool {
	names := make(map[string]bool)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					if len(n.Lhs) == len(n.Rhs) && isPrefixed(n.Rhs[i], nil) {
						names[lastName(l)] = true
					}
				}
			case *ast.Field:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Prefixed" {
					for _, name := range n.Names {
						names[name.Name] = true
					}
				}
			}
			return true
		})
	}
	delete(names, "")
	return names
}

// isPrefixed says whether an expression is a call of Prefix, or one of names.
func isPrefixed(x ast.Expr, names map[string]bool) bool {
	if call, ok := x.(*ast.CallExpr); ok {
		sel, isMethod := call.Fun.(*ast.SelectorExpr)
		return isMethod && sel.Sel.Name == "Prefix" && len(call.Args) == 1
	}
	return names[lastName(x)]
}

// suffixesHanded are the strings that a call hands to a function together with a Prefixed: the
// function reads what ends in them.
func suffixesHanded(call *ast.CallExpr, names map[string]bool) (suffixes []string) {
	handed := false
	for _, a := range call.Args {
		if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			suffixes = append(suffixes, text)
		}
		handed = handed || isPrefixed(a, names)
	}
	if !handed {
		return nil
	}
	return suffixes
}

// lastName is the name of a variable or of a field.
func lastName(x ast.Expr) string {
	text := exprText(x)
	return text[strings.LastIndexByte(text, '.')+1:]
}

// TestPrefixScan: the scanner sees what is read by way of a Prefixed, and mistakes in it.
func TestPrefixScan(t *testing.T) {
	t.Parallel()
	const head = "package x\nimport \"posthaste/internal/config\"\n"
	for source, want := range map[string]string{
		// Both programs have it.
		`func f(cfg *config.Config) { _ = cfg.Prefix("smtp").Int("mx_address_limit") }`: "lmtp_mx_address_limit smtp_mx_address_limit",
		`func f(p config.Prefixed) { _ = p.List("tls_policy_maps") }`:                   "lmtp_tls_policy_maps smtp_tls_policy_maps",
		// A function is handed the suffix.
		`func f(p config.Prefixed) { open(p, "generic_maps") }`: "lmtp_generic_maps smtp_generic_maps",
		`func f(p config.Prefixed) { open("generic_maps") }`:    "",
		// One has it.
		`type s struct { own config.Prefixed }; func f(s *s) { _ = s.own.Bool("assume_final") }`: "lmtp_assume_final",
		// A transport of the administrator's own may have it, so that the default counts.
		`func f(cfg *config.Config) { own := cfg.Prefix("slow"); _ = own.Int("delivery_slot_cost") }`: "default_delivery_slot_cost " +
			"error_delivery_slot_cost lmtp_delivery_slot_cost local_delivery_slot_cost relay_delivery_slot_cost retry_delivery_slot_cost " +
			"smtp_delivery_slot_cost virtual_delivery_slot_cost",
		`func f(cfg *config.Config) { own := cfg.Prefix("slow"); _ = own.Int("no_such_suffix") }`:    "! no parameter ends in _no_such_suffix",
		`func f(cfg *config.Config) { own := cfg.Prefix("smtp"); _ = own.Bool("mx_address_limit") }`: "! no parameter ends in _mx_address_limit",
		`func f(own table) { _ = own.Int("mx_address_limit") }`:                                      "",
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", head+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s := &scan{read: make(map[string]bool)}
		s.scanFiles(token.NewFileSet(), []*ast.File{f})
		got := strings.Join(slices.Sorted(maps.Keys(s.read)), " ")
		for _, p := range s.problems {
			_, text, _ := strings.Cut(p, ": ")
			text, _, _ = strings.Cut(text, ",")
			got = "! " + text
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant %s", source, got, want)
		}
	}
}

// TestTwins: what smtp and lmtp both have is of one type and has the same bounds, since one line of code reads both.
func TestTwins(t *testing.T) {
	t.Parallel()
	twins := 0
	for _, smtp := range All() {
		suffix, ok := strings.CutPrefix(smtp.Name, "smtp_")
		if !ok {
			continue
		}
		lmtp, ok := Lookup("lmtp_" + suffix)
		if !ok {
			continue
		}
		twins++
		if smtp.Type != lmtp.Type || smtp.Values != lmtp.Values || smtp.Min != lmtp.Min || smtp.Max != lmtp.Max ||
			smtp.Unit != lmtp.Unit || smtp.Origin != lmtp.Origin {
			t.Errorf("%s and %s differ:\n%+v\n%+v", smtp.Name, lmtp.Name, smtp, lmtp)
		}
	}
	if twins < 100 {
		t.Errorf("%d parameters are smtp's and lmtp's", twins)
	}
}
