package trivialrewrite

// Rewrite puts addr, in internal form, into standard form: user@domain with
// a full domain. context is "local" or "remote"; it decides what is added to an
// incomplete address. With "remote" and no remote_header_rewrite_domain nothing
// is added. The null address stays as it is.
func (r *Rewriter) Rewrite(context, addr string) string {
	if context == contextRemote {
		return r.remote.Rewrite(addr)
	}
	return r.form.Rewrite(addr)
}
