package e2b

import (
	"maps"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// transforms are header changes of requests, by domain: E2B's network.rules.
type transforms map[string][]transformRule

type transformRule struct {
	Transform struct {
		Headers map[string]string `json:"headers"`
	} `json:"transform"`
}

// The placeholder of a secret's value in a header: E2B's, and ours.
const (
	secretBegin, secretEnd = "${e2b.secrets.", "}"
	placeholder            = "${e2b." // of any kind
	valuePlace             = "{value}"
)

// uses converts t to uses of secrets.
func (t transforms) uses() (sandbox.SecretUses, error) {
	var uses []sandbox.SecretUse
	for _, domain := range slices.Sorted(maps.Keys(t)) {
		if len(t[domain]) != 1 || len(t[domain][0].Transform.Headers) == 0 {
			return "", sandbox.Errorf(sandbox.Invalid, "network.rules: the domain %.128q needs one rule, with headers", domain)
		}
		headers := t[domain][0].Transform.Headers
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			use, err := useOf(headers[name])
			if err != nil {
				return "", err
			}
			use.Host, use.Header = domain, name
			uses = append(uses, use)
		}
	}
	return sandbox.NewSecretUses(uses)
}

// useOf parses the value of a header, which contains at most one secret. A value
// without a secret is stored in the clear.
func useOf(value string) (sandbox.SecretUse, error) {
	before, rest, found := strings.Cut(value, secretBegin)
	if !strings.Contains(value, placeholder) {
		return sandbox.SecretUse{Format: value}, nil
	}
	name, after, ended := strings.Cut(rest, secretEnd)
	if !found || !ended || strings.Contains(before+after, "${") || strings.Contains(before+after, valuePlace) {
		return sandbox.SecretUse{}, unsupported("network.rules with a header that has another placeholder in it than one " + secretBegin + "NAME" + secretEnd)
	}
	return sandbox.SecretUse{Secret: name, Format: before + valuePlace + after}, nil
}

// transformsOf is the inverse of transforms.uses.
func transformsOf(s sandbox.SecretUses) transforms {
	uses, err := s.List()
	if err != nil {
		return nil
	}
	t := transforms{}
	for _, u := range uses {
		if t[u.Host] == nil {
			t[u.Host] = make([]transformRule, 1)
			t[u.Host][0].Transform.Headers = map[string]string{}
		}
		value := secretBegin + u.Secret + secretEnd
		switch {
		case u.Secret == "":
			value = u.Format
		case u.Format != "":
			value = strings.Replace(u.Format, valuePlace, value, 1)
		}
		t[u.Host][0].Transform.Headers[u.Header] = value
	}
	return t
}
