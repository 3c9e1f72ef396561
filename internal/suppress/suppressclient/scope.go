package suppressclient

import (
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/mail"
)

// A scope is what an entry holds for, and what mail is under. It is
//
//	""           all mail under the suppression list; of entries alone, which operators make
//	LIST         a list that suppress_list_maps names
//	TENANT/      all mail of a tenant
//	TENANT/LIST  one list of a tenant
//
// No name of a list or a tenant has a slash, so that neither is ever taken for the other.

// Unsubscribed is the reason of an entry that a recipient has asked for, by the link that the message had for that.
const Unsubscribed = "unsubscribe"

// Enabled says whether any mail is under the suppression list.
func Enabled(cfg *config.Config) bool {
	return len(cfg.List("suppress_list_maps")) > 0 || len(cfg.List("suppress_tenants")) > 0
}

// Scope is that of a tenant's mail, of a list or (empty) of none.
func Scope(tenant, list string) string {
	if tenant == "" {
		return list
	}
	return tenant + "/" + list
}

// Parts are tenant and list of a scope; either may be empty.
func Parts(scope string) (tenant, list string) {
	if tenant, list, ok := strings.Cut(scope, "/"); ok {
		return tenant, list
	}
	return "", scope
}

// ValidScope says whether a text is a scope, other than that of all mail.
func ValidScope(scope string) bool {
	tenant, list, ok := strings.Cut(scope, "/")
	if !ok {
		return ValidList(scope)
	}
	return mail.GroupName(tenant) && (list == "" || ValidList(list))
}

// Chain are the scopes whose entries hold for mail of a scope: the narrowest first. Mail of a tenant's list is under what
// an operator has for the list of that name as well, since the list may be older than the tenant.
func Chain(scope string) []string {
	tenant, list, ok := strings.Cut(scope, "/")
	switch {
	case scope == "":
		return []string{""}
	case !ok:
		return []string{scope, ""}
	case list == "":
		return []string{scope, ""}
	}
	return []string{scope, tenant + "/", list, ""}
}

// Home is the scope of entries that come about by bounces and complaints of mail of a scope. Such an address is no
// address for any list of a tenant.
func Home(scope string) string {
	if tenant, _, ok := strings.Cut(scope, "/"); ok {
		return tenant + "/"
	}
	return scope
}
