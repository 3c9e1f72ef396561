package config

import (
	"fmt"
	"strings"

	"golang.org/x/net/idna"
)

// call applies the function of Postfix 3.11 that ${name{arg}} names.
func call(name, arg string, names resolver) (string, error) {
	convert := (*idna.Profile).ToASCII
	international := strings.ContainsFunc(arg, func(c rune) bool { return c >= 0x80 })
	switch name {
	case "domain_to_ascii":
		if !international {
			return arg, nil
		}
	case "domain_to_utf8":
		if international {
			return arg, nil
		}
		convert = (*idna.Profile).ToUnicode
	default:
		return "", fmt.Errorf("expected the function domain_to_ascii or domain_to_utf8 in \"${%s{%s}}\"", name, arg)
	}
	transitional, err := names.text("enable_idna2003_compatibility")
	if err != nil {
		return "", err
	}
	profile := idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(true), idna.StrictDomainName(false),
		idna.Transitional(strings.EqualFold(transitional, "yes")))
	domain, err := convert(profile, arg)
	if err != nil {
		return "", fmt.Errorf("expected a domain in \"${%s{%s}}\": %w", name, arg, err)
	}
	return domain, nil
}

// expandCall appends what a function makes of its argument, the expansion of what
// stands in the group that args, all that follows its name, consists of.
func expandCall(out []byte, name, args string, names resolver) ([]byte, error) {
	inner, after, err := cutGroup(args)
	if err != nil {
		return out, err
	}
	if after = trimLeft(after); after != "" {
		return out, fmt.Errorf("expected } at %q", after)
	}
	arg, err := expand(nil, strings.TrimSpace(inner), names)
	if err != nil {
		return out, err
	}
	result, err := call(name, string(arg), names)
	return append(out, result...), err
}
