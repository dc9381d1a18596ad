"""Checks what SAM makes of template.yaml, beyond what can be read in it.

The transform runs in AWS when a stack is deployed. Here it runs offline, and its outcome is held against what the template
promises: it adds no role and no policy, each route but the public one asks for a token, browsers are told all they ask
before a call (CORS), and only this stack's API and schedule may call a function.
"""

import json
import sys

import boto3
from samcli.yamlhelper import yaml_parse
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

PUBLIC = {("/activities/{activityId}", "get")}
CORS = {"allowOrigins", "allowMethods", "allowHeaders", "exposeHeaders", "maxAge"}


def transformed(path):
    """The template as CloudFormation gets it."""
    with open(path, encoding="utf-8") as file:
        template = yaml_parse(file.read())
    parameters = {name: parameter.get("Default") for name, parameter in template["Parameters"].items()}
    for resource in template["Resources"].values():
        # `sam package` puts an address in S3 here.
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://bucket/key"
    session = boto3.Session(region_name="us-east-1")
    outcome = Translator({}, Parser(), boto_session=session).translate(template, parameters)
    return template["Resources"], outcome["Resources"]


def wrong(ours, theirs):
    """What breaks a promise, in words."""
    for name, resource in theirs.items():
        if name not in ours and resource["Type"].startswith("AWS::IAM::"):
            yield f"SAM adds {resource['Type']} {name}"
        if resource["Type"] == "AWS::Lambda::Permission" and "SourceArn" not in resource["Properties"]:
            yield f"anybody at {resource['Properties']['Principal']} may call by {name}"
        if resource["Type"] == "AWS::ApiGatewayV2::Api":
            cors = resource["Properties"]["Body"].get("x-amazon-apigateway-cors", {})
            _, cors, _ = cors.get("Fn::If", (None, cors, None))
            if set(cors) != CORS:
                yield f"the CORS settings of {name} are not {sorted(CORS)}: {json.dumps(cors)}"
            for path, methods in resource["Properties"]["Body"]["paths"].items():
                for method, operation in methods.items():
                    # `NONE` is SAM's word for "nobody is asked".
                    asked = {scheme: scopes for wanted in operation.get("security", []) for scheme, scopes in wanted.items()}
                    asks = any(scheme != "NONE" for scheme in asked)
                    if asks == ((path, method) in PUBLIC):
                        yield f"{method} {path} {'asks' if asks else 'does not ask'} for a token"
                    if asks and not all(asked.values()):
                        yield f"{method} {path} asks for no scope, so an ID token will do"
    if len(theirs) > 500:
        yield f"{len(theirs)} resources; CloudFormation takes 500"
    if len(json.dumps(theirs)) > 1_000_000:
        yield "the template has more than 1,000,000 bytes, which CloudFormation does not take"


if __name__ == "__main__":
    OURS, THEIRS = transformed(sys.argv[1])
    FOUND = list(wrong(OURS, THEIRS))
    print("\n".join(FOUND) or f"{sys.argv[1]} becomes {len(THEIRS)} resources")
    sys.exit(1 if FOUND else 0)
